"""A bounded set of digests: texts that were judged once and need not be judged again. Safe for several threads."""

from hashlib import sha256
from typing import Final

MOST: Final = 100_000  # of 32 bytes each; a data set has as many rows


class Digests:
    def __init__(self) -> None:
        self._known = set[bytes]()

    def add(self, *parts: object) -> None:
        if len(self._known) >= MOST:
            self._known.clear()
        self._known.add(_digest(parts))

    def __contains__(self, parts: tuple[object, ...]) -> bool:
        return _digest(parts) in self._known


def _digest(parts: tuple[object, ...]) -> bytes:
    return sha256(repr(parts).encode()).digest()  # repr escapes half a surrogate pair
