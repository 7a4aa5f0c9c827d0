"""Publishes versions for the trainer's body, from one process or from several ranks.

Invariants:
- `publish` makes the copy, its sums and its probe; training pauses for nothing else;
- a version whose `publish` fails is never offered.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from engine.live.process.links import Links
from engine.live.trainer.ranks import RankGroup
from engine.live.trainer.shares import hosts_of
from engine.live.weights.handover import Handover
from engine.live.weights.offered_bytes import OfferedBytes, OfferedPart
from engine.live.weights.segments import SharedBytes
from engine.policy.lineage import WeightsId
from engine.training.port import WeightHolder
from engine.weights.port import Probe, WeightManifest
from engine.weights.snapshot import unhashed
from engine.weights.sums import added


class Publishing(Protocol):
    def publish(self, weights: WeightsId) -> WeightManifest:
        """Copies the current weights and keeps the copy until `forget`."""

    def payload(self, weights: WeightsId) -> OfferedBytes: ...

    def forget(self, weights: WeightsId) -> None: ...


class PublishingAlone:
    def __init__(self, holder: WeightHolder, handover: Handover, *, probe: Callable[[], Probe] | None = None) -> None:
        """`probe`: None if the holder computes nothing."""
        self._holder, self._handover, self._probe = holder, handover, probe

    def publish(self, weights: WeightsId) -> WeightManifest:
        version = self._holder.snapshot(weights, allocate=self._handover.allocate)
        self._handover.keep(version)
        return replace(version.manifest, probe=None if self._probe is None else self._probe())

    def payload(self, weights: WeightsId) -> OfferedBytes:
        return self._handover.payload(weights)

    def forget(self, weights: WeightsId) -> None:
        self._handover.forget(weights)


class PublishingTogether:
    def __init__(self, group: RankGroup, handover: Handover, links: Links) -> None:
        """`handover`: of this process, which is rank 0."""
        self._group, self._handover = group, handover
        places = group.request("place", dict.fromkeys(range(group.num_ranks), ()))
        self._hosts = hosts_of([places[rank] for rank in sorted(places)])
        self._parts: dict[WeightsId, tuple[OfferedPart, ...]] = {}
        self._request_holders("hold", {host.holder: (links if host.holder else handover,) for host in self._hosts})
        rooms = self._request_holders("reserve", {host.holder: (host.spans.num_bytes,) for host in self._hosts})
        self._get_ready(rooms)

    def publish(self, weights: WeightsId) -> WeightManifest:
        try:
            sums = added(self._group.request("write", self._targets).values())
            probe = self._group.probe()
        except BaseException:
            self._handover.give_up()  # other hosts free the memory with its holder, which the group has ended
            raise
        kept = self._request_holders("keep", {host.holder: (weights, host.spans) for host in self._hosts})
        self._parts[weights] = tuple(part for part, _ in kept)
        self._get_ready([room for _, room in kept])
        manifest = unhashed(self._group.entries, weights=weights, low_rank=self._group.low_rank, sums=sums)
        return replace(manifest, probe=probe)

    def payload(self, weights: WeightsId) -> OfferedBytes:
        return OfferedBytes(parts=self._parts[weights])

    def forget(self, weights: WeightsId) -> None:
        if self._parts.pop(weights, None) is not None:
            self._group.send("forget", {host.holder: (weights,) for host in self._hosts})

    def _request_holders(self, call: str, arguments: dict[int, tuple[object, ...]]) -> list[Any]:
        answers = self._group.request(call, arguments)
        return [answers[host.holder] for host in self._hosts]

    def _get_ready(self, rooms: list[SharedBytes]) -> None:
        """Prepares the memory that the next version will be written to."""
        self._targets: dict[int, tuple[object, ...]] = {
            rank: (room, host.spans) for host, room in zip(self._hosts, rooms, strict=True) for rank in host.ranks
        }
        self._group.send("get_ready", self._targets)
