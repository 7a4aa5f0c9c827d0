"""Repack: empty the slots for weights that only hold a long tail, so that they can take new weights.

A replica's work on weights that are not the newest any more is a tail once it leaves places empty: fresh work would
have filled them. Nothing depends on a number of requests left, nor on how full the KV cache is: requests that wait for
their environment hold none of it, and the last few answers grow while the others end.

Invariants:
- a trajectory moves only between replicas on the same weights;
- a host is never filled beyond its KV ceiling or its batch bound;
- a source's slot is emptied completely or left alone, one of a replica at a time, and never a host's in the same plan;
- only slots with weights that are not the newest any more are emptied, of replicas that could not take the newest
  anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.policy.lineage import WeightsId

REPACK_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """The load of one replica on some of its weights."""

    replica: int
    weights: WeightsId
    num_running: int
    kv_used: float
    num_beside: int = 0
    """Work on other weights takes its room too."""
    kv_beside: float = 0.0
    has_free_slot: bool = False
    """It could take newer weights at once, whatever it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    source: int
    host: int
    weights: WeightsId


def plan_repack(
    replicas: Sequence[ReplicaView], *, newest: WeightsId, kv_ceiling: float, max_batch: int
) -> list[Merge]:
    """Sources by KV use, the emptiest first; each goes whole to the fullest host that it fits."""
    plan = _Plan(replicas, kv_ceiling=kv_ceiling, max_batch=max_batch)
    for weights in sorted({view.weights for view in replicas if view.weights < newest}):
        tails = [view for view in replicas if view.weights == weights and 0 < view.num_running < max_batch]
        for source in sorted(tails, key=lambda view: (view.kv_used, view.num_running, view.replica)):
            plan.place(source, tails)
    return plan.merges


class _Plan:
    """Merges so far, and what each replica would hold after them."""

    def __init__(self, replicas: Sequence[ReplicaView], *, kv_ceiling: float, max_batch: int) -> None:
        self._kv_ceiling, self._max_batch = kv_ceiling, max_batch
        self._kv = {view.replica: view.kv_used + view.kv_beside for view in replicas}
        self._running = {view.replica: view.num_running + view.num_beside for view in replicas}
        self._sources: set[int] = set()
        self._hosts: set[int] = set()
        self.merges: list[Merge] = []

    def place(self, source: ReplicaView, tails: Sequence[ReplicaView]) -> None:
        is_taken = source.replica in self._sources or source.replica in self._hosts
        fitting = [] if is_taken or source.has_free_slot else [view for view in tails if self._fits(source, view)]
        if not fitting:
            return
        host = max(map(self._load, fitting))[-1]
        self._kv[host] += source.kv_used
        self._running[host] += source.num_running
        self._sources.add(source.replica)
        self._hosts.add(host)
        self.merges.append(Merge(source=source.replica, host=host, weights=source.weights))

    def _load(self, view: ReplicaView) -> tuple[float, int, int]:
        return self._kv[view.replica], self._running[view.replica], view.replica

    def _fits(self, source: ReplicaView, host: ReplicaView) -> bool:
        at = host.replica
        has_room = self._kv[at] + source.kv_used <= self._kv_ceiling
        has_rows = self._running[at] + source.num_running <= self._max_batch
        return at != source.replica and at not in self._sources and has_room and has_rows
