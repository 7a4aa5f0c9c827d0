"""The success of a run: trainer and data have both finished, and both speak of the newest trainer.

A checkpoint can rot after it was written: then the next trainer begins before the last step again, and what was said of
the trainer before it counts no more, from the moment at which the next one is started.
"""

from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.to_driver import PartFinished, PartStarted, TrainerReady


class RunEnd:
    def __init__(self) -> None:
        self._newest_epoch = 0
        self._finished: dict[str, int] = {}
        """By part, the newest trainer that it spoke of."""

    def on_report(self, report: PartStarted | TrainerReady | PartFinished) -> None:
        match report:
            case PartStarted():
                if report.part == TRAINER:
                    self._newest_epoch = max(self._newest_epoch, report.incarnation)
            case TrainerReady():
                self._newest_epoch = max(self._newest_epoch, report.epoch)
            case PartFinished():  # may come before that trainer's own first word
                self._newest_epoch = max(self._newest_epoch, report.epoch)
                self._finished[report.part] = max(self._finished.get(report.part, 0), report.epoch)

    @property
    def finished(self) -> list[str]:
        """The parts that have nothing left to do."""
        return sorted(part for part, epoch in self._finished.items() if epoch == self._newest_epoch)

    @property
    def has_come(self) -> bool:
        return self.finished == ["data", "trainer"]
