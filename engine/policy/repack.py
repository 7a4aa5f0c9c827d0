"""Repack: empty the replicas that only hold a long tail, so that they can take new weights.

A replica is in its tail when its KV use has fallen below the plateau that it reached on its present weights: while
requests wait, or fresh ones come, it stays there. The last few answers grow, so that at the very end the use may rise
again; it is still the tail. Nothing depends on a number of requests left.

Invariants:
- a trajectory moves only between replicas on the same weights;
- a host is never filled beyond its KV ceiling or its batch bound;
- a source is emptied completely or left alone, and never a host in the same plan;
- only replicas with weights that are not the newest any more are emptied: the others could take fresh prompts anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.policy.lineage import WeightsId

REPACK_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    replica: int
    weights: WeightsId
    num_running: int
    kv_used: float
    kv_peak: float
    """The highest since it took these weights, or took over what others ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    source: int
    host: int


def plan_repack(
    replicas: Sequence[ReplicaView], *, newest: WeightsId, kv_ceiling: float, max_batch: int
) -> list[Merge]:
    """Sources by KV use, the emptiest first; each goes whole to the fullest host that it fits."""
    merges: list[Merge] = []
    for weights in sorted({view.weights for view in replicas if view.weights < newest}):
        tails = [view for view in replicas if view.weights == weights and _is_tail(view, kv_ceiling, max_batch)]
        merges += _best_fit(tails, kv_ceiling=kv_ceiling, max_batch=max_batch)
    return merges


def _is_tail(view: ReplicaView, kv_ceiling: float, max_batch: int) -> bool:
    return 0 < view.num_running < max_batch and view.kv_used < min(kv_ceiling, view.kv_peak)


def _best_fit(tails: Sequence[ReplicaView], *, kv_ceiling: float, max_batch: int) -> list[Merge]:
    kv = {view.replica: view.kv_used for view in tails}
    running = {view.replica: view.num_running for view in tails}
    sources: set[int] = set()
    hosts: set[int] = set()
    merges: list[Merge] = []
    for source in sorted(kv, key=lambda replica: (kv[replica], replica)):
        if source in hosts:
            continue
        fitting = [
            host
            for host in kv
            if host != source
            and host not in sources
            and kv[host] + kv[source] <= kv_ceiling
            and running[host] + running[source] <= max_batch
        ]
        if not fitting:
            continue
        host = max(fitting, key=lambda replica: (kv[replica], -replica))
        kv[host] += kv[source]
        running[host] += running[source]
        sources.add(source)
        hosts.add(host)
        merges.append(Merge(source=source, host=host))
    return merges
