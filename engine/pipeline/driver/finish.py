"""When a run is over: trainer and data have both finished, and both speak of the newest trainer.

A checkpoint can rot after it was written: then the next trainer begins before the last step again, and what was said of
the trainer before it counts no more.
"""

from engine.pipeline.messages.to_driver import PartFinished, ToDriver, TrainerReady


class Finish:
    def __init__(self) -> None:
        self._newest_epoch = 0
        self._finished: dict[str, int] = {}
        """By part, the newest trainer that it spoke of."""

    def on_report(self, report: ToDriver) -> None:
        match report:
            case TrainerReady():
                self._newest_epoch = max(self._newest_epoch, report.epoch)
            case PartFinished():  # may come before that trainer's own first word
                self._newest_epoch = max(self._newest_epoch, report.epoch)
                self._finished[report.part] = max(self._finished.get(report.part, 0), report.epoch)

    @property
    def parts(self) -> list[str]:
        """That have finished."""
        return sorted(part for part, epoch in self._finished.items() if epoch == self._newest_epoch)

    @property
    def is_over(self) -> bool:
        return self.parts == ["data", "trainer"]
