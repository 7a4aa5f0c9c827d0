"""Repack: empty the slots for weights that only hold a long tail, so that they can take new weights.

A replica's work on outdated weights is a tail once it leaves places empty, since fresh work would have filled them.
Neither the number of requests left nor the KV use decides: requests that wait for their environment hold no cache, and
the last few answers grow while the others end.

Invariants:
- a trajectory moves only between replicas on the same weights;
- a host is never filled beyond its KV ceiling or its batch bound;
- a source's slot is emptied completely or left alone, one of a replica at a time, and never if the replica is a host in
  the same plan;
- only slots with outdated weights are emptied, of replicas that have no free slot for the newest;
- a plan for n replicas takes n log n steps, however many of them are tails.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Literal

from engine.policy.lineage import WeightsId

REPACK_EVERY_S: Final = 5.0

RepackBy = Literal["places", "kv"]
"""How a tail is recognized: by the places that it leaves empty, or, as in the Laminar paper, by falling KV use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """The load of one replica on one of its versions."""

    replica: int
    weights: WeightsId
    num_running: int
    kv_used: float
    num_other: int = 0
    """Work on its other weights, which takes up room too."""
    kv_other: float = 0.0
    kv_falls: bool = True
    """KV use is below the ceiling, and lower than at the measurement before."""
    has_free_slot: bool = False
    """The replica could install newer weights at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    source: int
    host: int
    weights: WeightsId


def plan_repack(
    replicas: Sequence[ReplicaView],
    *,
    newest: WeightsId,
    kv_ceiling: float,
    max_batch: int,
    by: RepackBy = "places",
) -> list[Merge]:
    """Sources by KV use, emptiest first; each moves whole to the fullest host with room for it."""
    plan = _Plan(replicas, kv_ceiling=kv_ceiling, max_batch=max_batch)
    for weights in sorted({view.weights for view in replicas if view.weights < newest}):
        tails = [
            view
            for view in replicas
            if view.weights == weights and 0 < view.num_running < max_batch and (view.kv_falls or by == "places")
        ]
        hosts = plan.hosts(tails)
        for source in sorted(tails, key=lambda view: (view.kv_used, view.num_running, view.replica)):
            plan.place(source, hosts)
    return plan.merges


class _Plan:
    """Merges so far, and the load of each replica after them."""

    def __init__(self, replicas: Sequence[ReplicaView], *, kv_ceiling: float, max_batch: int) -> None:
        self._kv_ceiling, self._max_batch = kv_ceiling, max_batch
        self._kv = {view.replica: view.kv_used + view.kv_other for view in replicas}
        self._running = {view.replica: view.num_running + view.num_other for view in replicas}
        self._sources: set[int] = set()
        self._hosts: set[int] = set()
        self.merges: list[Merge] = []

    def hosts(self, tails: Iterable[ReplicaView]) -> "_Hosts":
        loads = [self._load(view.replica) for view in tails if view.replica not in self._sources]
        return _Hosts(loads, max_batch=self._max_batch)

    def place(self, source: ReplicaView, hosts: "_Hosts") -> None:
        is_taken = source.replica in self._sources or source.replica in self._hosts
        host = None if is_taken or source.has_free_slot else self._host_for(source, hosts)
        if host is None:
            return
        self._kv[host] += source.kv_used
        self._running[host] += source.num_running
        hosts.put(self._load(host))
        self._sources.add(source.replica)
        self._hosts.add(host)
        self.merges.append(Merge(source=source.replica, host=host, weights=source.weights))

    def _host_for(self, source: ReplicaView, hosts: "_Hosts") -> int | None:
        """Removes the host, and hosts that are too full: with sources by rising KV use, they stay too full."""
        own, host = None, None
        while host is None and (load := hosts.take(self._max_batch - source.num_running)) is not None:
            kv_used, _, at = load
            if at == source.replica:
                own = load
            elif at not in self._sources and kv_used + source.kv_used <= self._kv_ceiling:
                host = at
        if own is not None:
            hosts.put(own)
        return host

    def _load(self, replica: int) -> "_Load":
        return self._kv[replica], self._running[replica], replica


_Load = tuple[float, int, int]
"""KV use, requests, replica: compares as fuller or less full."""
_NO_HOST: Final = (float("-inf"), -1, -1)


class _Hosts:
    """Hosts on shelves by number of requests; a tree over the shelves holds the fullest host of each half.

    shelf       0    1    2    3        the fullest with 2 requests or fewer: of shelves 0 and 1 together, and of 2
                └─┬──┘    └─┬──┘
                  └────┬────┘
    """

    def __init__(self, loads: Iterable[_Load], *, max_batch: int) -> None:
        self._shelves: list[list[_Load]] = [[] for _ in range(max_batch)]
        """Heaps of negated loads. A host without a free place is on no shelf."""
        for kv_used, running, replica in loads:
            if running < max_batch:
                self._shelves[running].append((-kv_used, -running, -replica))
        self._fullest = [_NO_HOST] * (2 * max_batch)
        for number, shelf in enumerate(self._shelves):
            heapify(shelf)
            self._fullest[max_batch + number] = _peek(shelf)
        for at in range(max_batch - 1, 0, -1):
            self._fullest[at] = max(self._fullest[2 * at], self._fullest[2 * at + 1])

    def put(self, load: _Load) -> None:
        kv_used, running, replica = load
        if running < len(self._shelves):
            heappush(self._shelves[running], (-kv_used, -running, -replica))
            self._update_tree(running)

    def take(self, most_running: int) -> _Load | None:
        """Removes and returns the fullest host that runs at most so many requests; None: there is none."""
        low, high = len(self._shelves), len(self._shelves) + min(most_running + 1, len(self._shelves))
        fullest = _NO_HOST
        while low < high:
            if low % 2:
                fullest, low = max(fullest, self._fullest[low]), low + 1
            if high % 2:
                high -= 1
                fullest = max(fullest, self._fullest[high])
            low, high = low // 2, high // 2
        if fullest == _NO_HOST:
            return None
        heappop(self._shelves[fullest[1]])
        self._update_tree(fullest[1])
        return fullest

    def _update_tree(self, number: int) -> None:
        at = len(self._shelves) + number
        self._fullest[at] = _peek(self._shelves[number])
        while at > 1:
            at //= 2
            self._fullest[at] = max(self._fullest[2 * at], self._fullest[2 * at + 1])


def _peek(shelf: list[_Load]) -> _Load:
    if not shelf:
        return _NO_HOST
    kv_used, running, replica = shelf[0]
    return -kv_used, -running, -replica
