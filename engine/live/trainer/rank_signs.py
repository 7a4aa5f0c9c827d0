"""Forwards the progress signs of other ranks to rank 0, whose loop waits for the slowest."""

from collections.abc import Callable


class RankSigns:
    def __init__(self, num_signs: Callable[[], int], sign: Callable[[], None]) -> None:
        """`num_signs`: the ranks' signs so far; `sign`: signs for the waiting loop."""
        self._num_signs, self._sign, self._passed_on = num_signs, sign, num_signs()

    def pass_on(self) -> None:
        """Signs once if any rank has signed since the last call."""
        count = self._num_signs()
        if count != self._passed_on:
            self._sign()
        self._passed_on = count
