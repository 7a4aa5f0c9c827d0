"""The places of a replica that are taken or promised, counted by weights without a scan over groups.

Invariant: the counts are the sums over everything that was put here and not freed since.
"""

from collections.abc import Collection, Iterable
from typing import Literal

from engine.pipeline.records import GroupKey
from engine.policy.lineage import WeightsId

Kind = Literal["running", "awaited", "reserved"]


class Occupancy:
    def __init__(self) -> None:
        self._held: dict[Kind, dict[GroupKey, tuple[WeightsId, int]]] = {"running": {}, "awaited": {}, "reserved": {}}
        self._num_groups: dict[WeightsId, int] = {}
        self._num_samples: dict[WeightsId, int] = {}
        self._num_bound: dict[WeightsId, int] = {}
        """Groups that must stay on these weights: an evaluation's, and those that another replica hands over."""
        self.num_running = 0
        self.num_busy = 0
        self.in_use: frozenset[WeightsId] = frozenset()

    def num_busy_on(self, weights: WeightsId) -> int:
        return self._num_samples.get(weights, 0)

    def put(self, kind: Kind, key: GroupKey, weights: WeightsId, num_samples: int) -> None:
        """Replaces the group's entry of this kind."""
        self.free(kind, [key])
        self._held[kind][key] = (weights, num_samples)
        self._add(kind, key, weights, num_samples, num_groups=1)

    def free(self, kind: Kind, keys: Iterable[GroupKey]) -> None:
        for key in keys:
            held = self._held[kind].pop(key, None)
            if held is not None:
                weights, num_samples = held
                self._add(kind, key, weights, -num_samples, num_groups=-1)

    def free_all(self, kinds: Collection[Kind]) -> None:
        for kind in kinds:
            self.free(kind, list(self._held[kind]))

    def switch_weights(self, kinds: Collection[Kind], weights: WeightsId, *, of: WeightsId | None = None) -> None:
        """Moves all entries of these kinds to `weights`. `of`: only entries on these."""
        for kind in kinds:
            for key, (before, num_samples) in list(self._held[kind].items()):
                if of in (None, before):
                    self.put(kind, key, weights, num_samples)

    @property
    def oldest(self) -> WeightsId | None:
        """The oldest weights in use without bound groups: all their work may continue on other weights."""
        return min((weights for weights in self.in_use if not self._num_bound.get(weights)), default=None)

    def _add(self, kind: Kind, key: GroupKey, weights: WeightsId, num_samples: int, *, num_groups: int) -> None:
        if kind != "running" or key.evaluation is not None:
            self._num_bound[weights] = self._num_bound.get(weights, 0) + num_groups
        self.num_busy += num_samples
        if kind == "running":
            self.num_running += num_samples
        left = self._num_groups.get(weights, 0) + num_groups
        self._num_samples[weights] = self._num_samples.get(weights, 0) + num_samples
        if left:
            self._num_groups[weights] = left
        else:
            del self._num_groups[weights], self._num_samples[weights]
            self._num_bound.pop(weights, None)
        if (weights in self.in_use) != bool(left):
            self.in_use = frozenset(self._num_groups)
