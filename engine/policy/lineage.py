"""Lineage: the tree in which weights descend from each other, and the staleness of a trajectory in it.

    epoch 0   0 ─ 1 ─ 2 ─ 3 ─ 4        the trainer died at 4; its last verified checkpoint was 2
    epoch 1           └─ 3 ─ 4 ─ 5     the new one forked from there

Weights are named by the trainer's incarnation (epoch) and the step that made them (version).

Invariants:
- any weights of a later epoch are newer than all of an earlier one, whatever their versions;
- staleness is the number of steps between two weights in the tree: along one epoch that is the plain difference, and
  weights of a branch that died count the way back to the fork as well. It is never negative.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, order=True)
class WeightsId:
    epoch: int
    version: int

    def __str__(self) -> str:
        return f"{self.version}" if self.epoch == 0 else f"{self.version} of epoch {self.epoch}"


NO_WEIGHTS: Final = WeightsId(0, -1)
# Version 0 as any incarnation of a resumed trainer offers it. As the lowest id it never replaces other weights.
BASE_WEIGHTS: Final = WeightsId(0, 0)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The tree. `forks[i]`: epoch `epochs[i]` began from this version of the epoch before it."""

    forks: tuple[tuple[int, int], ...] = ()
    """(epoch, version), epochs rising. The first epoch of an attempt is no fork."""

    @property
    def epoch(self) -> int:
        return self.forks[-1][0] if self.forks else 0

    def forked(self, epoch: int, *, at: int) -> "Lineage":
        assert epoch > self.epoch, f"epoch {epoch} after {self.epoch}"
        return Lineage((*self.forks, (epoch, at)))

    def ancestor(self, weights: WeightsId) -> int:
        """The newest version of the living branch that these weights descend from, or are."""
        return min([weights.version, *(version for epoch, version in self.forks if epoch > weights.epoch)])

    def staleness(self, weights: WeightsId, *, at: int) -> int:
        """Staleness of tokens by these weights when version `at` of the living branch consumes them."""
        ancestor = self.ancestor(weights)
        return max(0, at - ancestor) + (weights.version - ancestor)


UNFORKED: Final = Lineage()
