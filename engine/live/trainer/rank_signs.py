"""Signs of life of other ranks, for rank 0, whose loop waits for the slowest."""

from collections.abc import Callable


class RankSigns:
    def __init__(self, num_signs: Callable[[], int], sign: Callable[[], None]) -> None:
        """`num_signs`: all that ranks have given so far; `sign`: of the loop that waits."""
        self._num_signs, self._sign, self._passed_on = num_signs, sign, num_signs()

    def pass_on(self) -> None:
        """One sign if there was any since the last call."""
        count = self._num_signs()
        if count != self._passed_on:
            self._sign()
        self._passed_on = count
