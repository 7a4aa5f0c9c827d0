"""The versions that a replica holds at once: what versions in use cost a step, and the memory that older ones take.

Invariants:
- weights in use are the newest, or were kept when the newest were installed, and their cost is counted;
- an older version keeps its memory until the next installation, even once nothing runs on it any more.
"""

from collections import Counter
from collections.abc import Iterable

from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.sim.costs.decode import Load
from engine.sim.costs.slots import SlotCost, WholeCost


class Residents:
    def __init__(self, slots: SlotCost | None) -> None:
        """None: whole copies."""
        self._slots = slots or WholeCost()
        self.num_rows: Counter[WeightsId] = Counter()
        self._load: Load | None = None
        """None: the running rows have changed since the last call."""
        self.newest = NO_WEIGHTS
        self.older: tuple[WeightsId, ...] = ()

    def add_row(self, weights: WeightsId) -> None:
        self.num_rows[weights] += 1
        self._load = None

    def take_row(self, weights: WeightsId) -> None:
        self.num_rows[weights] -= 1
        if not self.num_rows[weights]:
            del self.num_rows[weights]
        self._load = None

    @property
    def load(self) -> Load:
        if self._load is None:
            self._load = self._slots.load([(self._age(weights), num) for weights, num in self.num_rows.items()])
        return self._load

    @property
    def taken_tokens(self) -> int:
        return self._slots.taken_tokens(map(self._age, self.older))

    def install(self, weights: WeightsId, *, keeps: Iterable[WeightsId]) -> float:
        """Installs weights; returns the time to rebuild what is kept of older versions."""
        before = [self._age(each) for each in self.older]
        self.newest, self.older, self._load = weights, tuple(keeps), None
        return self._slots.making_s(before, map(self._age, self.older))

    def _age(self, weights: WeightsId) -> int:
        return abs(self.newest.version - weights.version)
