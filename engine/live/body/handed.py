"""The items of a poll's answer, kept until the next poll acknowledges them.

Invariants:
- an answer may be lost although the call was made (a connection breaks, the caller freezes for minutes): its items are
  then handed out again, and none is lost;
- acknowledged items are not handed out again.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Handed(Generic[Item]):
    def __init__(self) -> None:
        self._number, self._items = 0, list[Item]()

    def after(self, got: int, take: Callable[[], list[Item]]) -> tuple[int, list[Item]]:
        """`got`: the number of the last answer received; 0: none. Returns this answer's number and items."""
        if got == self._number:
            self._number, self._items = self._number + 1, take()
        return self._number, self._items
