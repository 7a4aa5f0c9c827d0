"""The success of a run: trainer and data have both finished with the newest trainer.

A checkpoint can become corrupt after it was written. Then the next trainer begins before the last step again, and as
soon as it is started, reports about its predecessor no longer count.
"""

from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.to_driver import PartFinished, PartStarted, TrainerReady


class RunEnd:
    def __init__(self) -> None:
        self._newest_epoch = 0
        self._finished: dict[str, int] = {}
        """By part, the newest trainer's epoch that its reports named."""

    def on_report(self, report: PartStarted | TrainerReady | PartFinished) -> None:
        match report:
            case PartStarted():
                if report.part == TRAINER:
                    self._newest_epoch = max(self._newest_epoch, report.incarnation)
            case TrainerReady():
                self._newest_epoch = max(self._newest_epoch, report.epoch)
            case PartFinished():  # may arrive before that trainer's first message
                self._newest_epoch = max(self._newest_epoch, report.epoch)
                self._finished[report.part] = max(self._finished.get(report.part, 0), report.epoch)

    @property
    def finished(self) -> list[str]:
        """The parts that have nothing left to do."""
        return sorted(part for part, epoch in self._finished.items() if epoch == self._newest_epoch)

    @property
    def is_reached(self) -> bool:
        return self.finished == ["data", "trainer"]
