"""A relay's simulated body: bytes are names of chunks, which are their own hashes.

A whole version is the chunks `v/0`, `v/1`, …; a delta is one chunk that names its base and result. A chunk travels with
its hash, as a frame does. Worker threads do the slow work, so that the loop stays free.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from engine.pipeline.effects import (
    AssembleWeights,
    DropBuffer,
    Effect,
    FetchWeights,
    ForwardChunk,
    MakeDelta,
    OpenBuffer,
    SealWeights,
    ServeWeights,
)
from engine.pipeline.messages.to_relay import (
    BufferHashed,
    ChunkHashed,
    DeltaMade,
    FetchFailed,
    WeightsHashed,
    WeightsSealed,
)
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import WeightsId
from engine.sim.bodies.data_and_trainer import TORN, Later, Post, WorkAside, carried
from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.sim.oracle.pipeline import Oracle
from engine.weights.port import BufferId, DeltaManifest, WeightManifest

OPEN_S: Final = 0.001
FETCH_S: Final = 0.03
ASSEMBLE_S: Final = 0.02
DELTA_S: Final = 0.02
SEAL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedChunk:
    """A chunk on the link between two relays."""

    buffer_id: BufferId
    index: int
    content: str


Carry = Callable[[int, CarriedChunk], None]
"""Sends a chunk to the body of another relay, over a link that loses and corrupts."""


@dataclass(slots=True, kw_only=True)
class WeightBuffer:
    arrival: int
    comes_by_link: bool = False
    is_open: bool = True
    waiting: list[CarriedChunk] = field(default_factory=list)
    """Chunks that arrived before the buffer was open."""
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
        work: WorkAside,
        post: Post,
        carry: Carry = lambda host, chunk: None,
    ) -> None:
        self._chance, self._faults, self._oracle = chance, faults, oracle
        self._later, self._work, self._post, self._carry = later, work, post, carry
        self._buffers: dict[BufferId, WeightBuffer] = {}
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self.num_useless_chunks = 0
        """Chunks that came although they were here already."""

    def perform(self, effect: Effect) -> None:
        match effect:
            case FetchWeights():
                self._fetch(effect)
            case OpenBuffer():
                buffer = WeightBuffer(
                    arrival=effect.arrival, comes_by_link=True, is_open=False, expected=effect.chunk_hashes
                )
                self._buffers[effect.buffer_id] = buffer
                self._work("open", OPEN_S, lambda: self._open(buffer))
            case ForwardChunk():
                content = self._buffers[effect.buffer_id].chunks[effect.index]
                self._carry(effect.to, CarriedChunk(buffer_id=effect.buffer_id, index=effect.index, content=content))
            case AssembleWeights():
                self._assemble(effect)
            case MakeDelta():
                self._make_delta(effect)
            case SealWeights():
                self._work("seal", SEAL_S, lambda: self._seal(effect.weights))
            case ServeWeights():
                self._serve(effect)
            case DropBuffer():
                self._buffers.pop(effect.buffer_id, None)
            case _:
                raise TypeError(f"a relay's body does not do {type(effect).__name__}")

    def on_carried(self, chunk: CarriedChunk) -> None:
        buffer = self._buffers.get(chunk.buffer_id)
        if buffer is None or not buffer.comes_by_link:
            return
        if not buffer.is_open:
            buffer.waiting.append(chunk)
            return
        if chunk.index in buffer.chunks:
            self.num_useless_chunks += 1
            return
        (content,) = carried((chunk.content,), self._chance, self._faults)
        is_torn = content != chunk.content
        if not is_torn and content == (buffer.expected or {chunk.index: content})[chunk.index]:
            buffer.chunks[chunk.index] = content
        self._report_chunk(buffer, chunk.buffer_id, chunk.index, content, is_torn=is_torn)

    def _open(self, buffer: WeightBuffer) -> None:
        buffer.is_open = True
        for chunk in buffer.waiting:
            self.on_carried(chunk)

    def chunks_of(self, weights: WeightsId) -> tuple[str, ...]:
        chunks = self._buffers[BufferId(weights=weights)].chunks
        return tuple(chunks[index] for index in sorted(chunks))

    def _fetch(self, effect: FetchWeights) -> None:
        manifest, sent = effect.manifest, effect.payload
        assert isinstance(sent, tuple)
        buffer_id = BufferId(weights=manifest.weights)
        buffer = self._buffers[buffer_id] = WeightBuffer(arrival=effect.arrival)
        whole = replace(manifest, chunk_bytes=effect.chunk_bytes, identity="+".join(sent), chunk_hashes=sent)

        def take(index: int) -> None:
            if index == len(sent):
                self._manifests[manifest.weights] = whole
                self._later(0.0, WeightsHashed(arrival=effect.arrival, manifest=whole))
            elif sent[index].startswith(TORN):  # live, the chunk's hash shows it
                self._later(0.0, FetchFailed(arrival=effect.arrival, reason="a chunk arrived torn"))
            else:
                buffer.chunks[index] = sent[index]
                self._report_chunk(buffer, buffer_id, index, sent[index])
                self._work("fetch", FETCH_S / len(sent), partial(take, index + 1))

        self._work("fetch", FETCH_S / len(sent), partial(take, 0))

    def _report_chunk(
        self, buffer: WeightBuffer, buffer_id: BufferId, index: int, content: str, *, is_torn: bool = False
    ) -> None:
        arrival = buffer.arrival
        hashed = ChunkHashed(arrival=arrival, buffer_id=buffer_id, index=index, digest=content, is_torn=is_torn)
        self._later(0.0, hashed)

    def _assemble(self, effect: AssembleWeights) -> None:
        manifest = effect.manifest
        self._manifests[manifest.weights] = manifest
        whole = BufferId(weights=manifest.weights)
        needed = [BufferId(weights=delta.base) for delta in effect.path[:1]] + [
            delta.buffer_id for delta in effect.path
        ]
        if any(buffer_id not in self._buffers for buffer_id in needed):
            self._later(0.0, FetchFailed(arrival=effect.arrival, reason="a base or delta is gone"))
            return
        if effect.path:
            chunks = self._buffers[BufferId(weights=effect.path[0].base)].chunks
            result = "+".join(chunks[index] for index in sorted(chunks))
            for delta in effect.path:
                base, _, result_of_delta = self._buffers[delta.buffer_id].chunks[0].partition(" -> ")
                result = result_of_delta if base == result else "nonsense"
            self._buffers[whole] = WeightBuffer(arrival=effect.arrival, chunks=dict(enumerate(result.split("+"))))
        chunks = self._buffers[whole].chunks
        identity = "+".join(chunks[index] for index in sorted(chunks))
        hashed = BufferHashed(arrival=effect.arrival, identity=identity)
        self._work("assemble", ASSEMBLE_S, lambda: self._later(0.0, hashed))

    def _make_delta(self, effect: MakeDelta) -> None:
        base, result = self._manifests[effect.base], self._manifests[effect.weights]
        chunk = f"{base.identity} -> {result.identity}"
        delta = DeltaManifest(
            weights=effect.weights,
            base=effect.base,
            base_identity=base.identity,
            result_identity=result.identity,
            num_bytes=1,
            chunk_bytes=1,
            chunk_hashes=(chunk,),
        )
        self._buffers[delta.buffer_id] = WeightBuffer(arrival=0, chunks={0: chunk})
        message = DeltaMade(weights=effect.weights, delta=delta)
        self._work("delta", DELTA_S, lambda: self._later(0.0, message))

    def _seal(self, weights: WeightsId) -> None:
        if BufferId(weights=weights) in self._buffers:
            self._later(0.0, WeightsSealed(weights=weights, sha256="+".join(self.chunks_of(weights))))

    def _serve(self, effect: ServeWeights) -> None:
        manifest, chunks = self._manifests[effect.weights], self.chunks_of(effect.weights)
        self._oracle.on_serve(effect.weights, is_whole=chunks == manifest.chunk_hashes)
        payload = carried(chunks, self._chance, self._faults)
        self._post(effect.to, WeightsServed(manifest=manifest, payload=payload))
