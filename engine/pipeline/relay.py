"""A relay: holds weight versions and serves them to the replicas of its host, at any time.

Invariants:
- a version is visible only when the hash of every chunk and of the whole are what its manifest says: nobody ever
  gets torn or mixed weights;
- the newest version is kept, and every pinned one until it is released; a version once visible is never changed;
- replicas that ever asked are told of every new version; one that misses the news asks again by itself.
"""

from dataclasses import dataclass, field

from engine.pipeline.effects import DropWeights, Effect, FetchWeights, Send, ServeWeights
from engine.pipeline.messages import (
    DRIVER,
    TRAINER,
    BufferHashed,
    ChunkHashed,
    Message,
    Tick,
    VersionAnnounced,
    VersionMissing,
    VersionRefused,
    VersionReleased,
    VersionStored,
    WeightsOffered,
    WeightsWanted,
    rollout_address,
)
from engine.pipeline.reports import FaultReported
from engine.weights.port import WeightManifest


@dataclass(slots=True, kw_only=True)
class Arrival:
    manifest: WeightManifest
    pinned: bool
    right_chunks: set[int] = field(default_factory=set)


class RelayBrain:
    def __init__(self) -> None:
        self._arriving: dict[int, Arrival] = {}
        self._visible: dict[int, bool] = {}
        """Version → pinned."""
        self._released: set[int] = set()
        self._replicas: dict[int, int] = {}
        """Replica → incarnation."""

    @property
    def newest(self) -> int:
        return max(self._visible, default=-1)

    @property
    def visible(self) -> frozenset[int]:
        return frozenset(self._visible)

    def handle(self, message: Message, now: float) -> list[Effect]:
        match message:
            case WeightsOffered():
                return self._on_offered(message)
            case ChunkHashed():
                return self._on_chunk(message)
            case BufferHashed():
                return self._on_buffer(message)
            case WeightsWanted():
                return self._on_wanted(message)
            case VersionReleased():
                return self._on_released(message.version)
            case Tick():
                return []
            case _:
                raise TypeError(f"a relay does not take {type(message).__name__}")

    def _on_offered(self, message: WeightsOffered) -> list[Effect]:
        manifest = message.manifest
        if manifest.version in self._arriving:
            return []  # a second copy must not overwrite bytes of the first whose hashes were taken already
        pinned = message.pinned and manifest.version not in self._released
        if manifest.version in self._visible or (manifest.version < self.newest and not pinned):
            return [Send(to=TRAINER, message=VersionStored(version=manifest.version))]
        self._arriving[manifest.version] = Arrival(manifest=manifest, pinned=pinned)
        return [FetchWeights(manifest=manifest, payload=message.payload)]

    def _on_chunk(self, message: ChunkHashed) -> list[Effect]:
        arrival = self._arriving.get(message.version)
        if arrival is None:
            return []
        if message.sha256 != arrival.manifest.chunk_sha256[message.index]:
            return self._refuse(message.version, f"chunk {message.index} has another hash than its manifest says")
        arrival.right_chunks.add(message.index)
        return []

    def _on_buffer(self, message: BufferHashed) -> list[Effect]:
        arrival = self._arriving.get(message.version)
        if arrival is None:
            return []
        if len(arrival.right_chunks) < len(arrival.manifest.chunk_sha256):
            return self._refuse(message.version, "not every chunk has come")
        if message.sha256 != arrival.manifest.sha256:
            return self._refuse(message.version, "the whole has another hash than its manifest says")
        del self._arriving[message.version]
        was_newest = self.newest
        self._visible[message.version] = arrival.pinned
        effects: list[Effect] = [Send(to=TRAINER, message=VersionStored(version=message.version))]
        if message.version > was_newest:
            announced = VersionAnnounced(version=message.version)
            effects += [Send(to=rollout_address(replica), message=announced) for replica in self._replicas]
        return [*effects, *self._evict()]

    def _refuse(self, version: int, reason: str) -> list[Effect]:
        del self._arriving[version]
        fault = FaultReported(component="relay", message=f"version {version}: {reason}", action="asked for it again")
        return [
            DropWeights(version=version),
            Send(to=TRAINER, message=VersionRefused(version=version, reason=reason)),
            Send(to=DRIVER, message=fault),
        ]

    def _on_wanted(self, message: WeightsWanted) -> list[Effect]:
        known = self._replicas.get(message.replica, -1)
        self._replicas[message.replica] = max(known, message.incarnation)
        address = rollout_address(message.replica)
        if message.exact is not None:
            if message.exact in self._visible:
                return [ServeWeights(to=address, version=message.exact)]
            return [Send(to=address, message=VersionMissing(version=message.exact))]
        return [ServeWeights(to=address, version=self.newest)] if self.newest > message.held else []

    def _on_released(self, version: int) -> list[Effect]:
        self._released.add(version)
        if version in self._visible:
            self._visible[version] = False
        return self._evict()

    def _evict(self) -> list[Effect]:
        newest = self.newest
        gone = [version for version, pinned in self._visible.items() if not pinned and version != newest]
        for version in gone:
            del self._visible[version]
        return [DropWeights(version=version) for version in gone]
