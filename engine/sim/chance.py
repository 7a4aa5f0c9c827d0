"""Random numbers from a seed: a SplitMix64 stream, so that a seed gives the same run on every machine and version.

Invariant: streams with different names are independent; drawing from one never shifts another.
"""

from hashlib import sha256
from math import cos, exp, log, pi, sqrt
from typing import Final

_MASK: Final = 2**64 - 1


class Chance:
    def __init__(self, seed: int, name: str) -> None:
        self._state = int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:8], "big")

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * (self._next() / 2**64)

    def happens(self, probability: float) -> bool:
        return self.uniform() < probability

    def whole(self, low: int, high: int) -> int:
        """low … high, both included."""
        return low + self._next() % (high - low + 1)

    def lognormal(self, *, median: float, sigma: float) -> float:
        radius = sqrt(-2 * log(1 - self.uniform()))
        return median * exp(sigma * radius * cos(2 * pi * self.uniform()))
