"""What a poll took along, kept until the next poll says that it has come.

Invariants:
- the answer to a call may be lost though the call was made (a connection breaks, the caller was frozen for minutes):
  what it held is then handed out again, and nothing of it is lost;
- what has come is not handed out again.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Handed(Generic[Item]):
    def __init__(self) -> None:
        self._number, self._items = 0, list[Item]()

    def after(self, got: int, take: Callable[[], list[Item]]) -> tuple[int, list[Item]]:
        """`got`: the number of the answer that came last, 0 of none. This one's number, and what it holds."""
        if got == self._number:
            self._number, self._items = self._number + 1, take()
        return self._number, self._items
