"""Forwards the progress of other ranks to rank 0, whose loop waits for the slowest."""

from collections.abc import Callable


class RankProgress:
    def __init__(self, num_reports: Callable[[], int], report: Callable[[], None]) -> None:
        """`num_reports`: of all ranks so far; `report`: reports progress of the waiting loop."""
        self._num_reports, self._report, self._passed_on = num_reports, report, num_reports()

    def pass_on(self) -> None:
        """Reports progress once if any rank has since the last call."""
        count = self._num_reports()
        if count != self._passed_on:
            self._report()
        self._passed_on = count
