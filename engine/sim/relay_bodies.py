"""A relay's simulated body: bytes are names of chunks, which are their own hashes.

A whole version is the chunks `v/0`, `v/1`, …; a delta is one chunk that names its two ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import (
    AssembleWeights,
    DropParcel,
    Effect,
    FetchWeights,
    ForwardChunk,
    MakeDelta,
    OpenParcel,
    ServeWeights,
)
from engine.pipeline.messages.to_relay import BufferHashed, ChunkHashed, DeltaMade, FetchFailed
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import WeightsId
from engine.sim.bodies import Later, Post, carried
from engine.sim.chance import Chance
from engine.sim.checks import Oracle
from engine.sim.faults import Faults
from engine.weights.port import DeltaManifest, ParcelId, WeightManifest

FETCH_S: Final = 0.03
ASSEMBLE_S: Final = 0.02
DELTA_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedChunk:
    """On the link between two relays."""

    parcel: ParcelId
    index: int
    content: str


Carry = Callable[[int, CarriedChunk], None]
"""To the body of another relay, over a link that loses and corrupts."""


@dataclass(slots=True, kw_only=True)
class Parcel:
    arrival: int
    expected: tuple[str, ...] = ()
    chunks: dict[int, str] = field(default_factory=dict)


class RelayBody:
    def __init__(
        self,
        *,
        chance: Chance,
        faults: Faults,
        oracle: Oracle,
        later: Later,
        post: Post,
        carry: Carry = lambda host, chunk: None,
    ) -> None:
        self._chance, self._faults, self._oracle = chance, faults, oracle
        self._later, self._post, self._carry = later, post, carry
        self._parcels: dict[ParcelId, Parcel] = {}
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self.num_useless_chunks = 0
        """That came although they were here already."""

    def perform(self, effect: Effect) -> None:
        match effect:
            case FetchWeights():
                self._fetch(effect)
            case OpenParcel():
                self._parcels[effect.parcel] = Parcel(arrival=effect.arrival, expected=effect.chunk_sha256)
            case ForwardChunk():
                content = self._parcels[effect.parcel].chunks[effect.index]
                self._carry(effect.to, CarriedChunk(parcel=effect.parcel, index=effect.index, content=content))
            case AssembleWeights():
                self._assemble(effect)
            case MakeDelta():
                self._make_delta(effect)
            case ServeWeights():
                self._serve(effect)
            case DropParcel():
                self._parcels.pop(effect.parcel, None)
            case _:
                raise TypeError(f"a relay's body does not do {type(effect).__name__}")

    def on_carried(self, chunk: CarriedChunk) -> None:
        parcel = self._parcels.get(chunk.parcel)
        if parcel is None or chunk.index >= len(parcel.expected or parcel.chunks):
            return
        if chunk.index in parcel.chunks:
            self.num_useless_chunks += 1
            return
        (content,) = carried((chunk.content,), self._chance, self._faults)
        if content == parcel.expected[chunk.index]:
            parcel.chunks[chunk.index] = content
        hashed = ChunkHashed(arrival=parcel.arrival, parcel=chunk.parcel, index=chunk.index, sha256=content)
        self._later(0.0, hashed)

    def chunks_of(self, version: WeightsId) -> tuple[str, ...]:
        chunks = self._parcels[ParcelId(version=version)].chunks
        return tuple(chunks[index] for index in sorted(chunks))

    def _fetch(self, effect: FetchWeights) -> None:
        manifest, sent = effect.manifest, effect.payload
        assert isinstance(sent, tuple)
        parcel = ParcelId(version=manifest.id)
        self._manifests[manifest.id] = manifest
        self._parcels[parcel] = Parcel(arrival=effect.arrival, chunks=dict(enumerate(sent)))
        for index, chunk in enumerate(sent):
            self._later(FETCH_S, ChunkHashed(arrival=effect.arrival, parcel=parcel, index=index, sha256=chunk))

    def _assemble(self, effect: AssembleWeights) -> None:
        manifest = effect.manifest
        self._manifests[manifest.id] = manifest
        whole = ParcelId(version=manifest.id)
        needed = [ParcelId(version=delta.base) for delta in effect.path[:1]] + [delta.parcel for delta in effect.path]
        if any(parcel not in self._parcels for parcel in needed):
            self._later(0.0, FetchFailed(arrival=effect.arrival, reason="what it is made of is gone"))
            return
        if effect.path:
            chunks = self._parcels[ParcelId(version=effect.path[0].base)].chunks
            result = "+".join(chunks[index] for index in sorted(chunks))
            for delta in effect.path:
                base, _, result_of_delta = self._parcels[delta.parcel].chunks[0].partition(" -> ")
                result = result_of_delta if base == result else "nonsense"
            self._parcels[whole] = Parcel(arrival=effect.arrival, chunks=dict(enumerate(result.split("+"))))
        chunks = self._parcels[whole].chunks
        sha256 = "+".join(chunks[index] for index in sorted(chunks))
        self._later(ASSEMBLE_S, BufferHashed(arrival=effect.arrival, sha256=sha256))

    def _make_delta(self, effect: MakeDelta) -> None:
        base, result = self._manifests[effect.base], self._manifests[effect.version]
        chunk = f"{base.sha256} -> {result.sha256}"
        delta = DeltaManifest(
            version=effect.version,
            base=effect.base,
            base_sha256=base.sha256,
            result_sha256=result.sha256,
            num_bytes=1,
            chunk_bytes=1,
            chunk_sha256=(chunk,),
        )
        self._parcels[delta.parcel] = Parcel(arrival=0, chunks={0: chunk})
        self._later(DELTA_S, DeltaMade(version=effect.version, delta=delta))

    def _serve(self, effect: ServeWeights) -> None:
        manifest, chunks = self._manifests[effect.version], self.chunks_of(effect.version)
        self._oracle.on_serve(effect.version, is_whole=chunks == manifest.chunk_sha256)
        payload = carried(chunks, self._chance, self._faults)
        self._post(effect.to, WeightsServed(manifest=manifest, payload=payload))
