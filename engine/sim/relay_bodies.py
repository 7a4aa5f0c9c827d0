"""A relay's simulated body: bytes are names of chunks, which are their own hashes.

A whole version is the chunks `v/0`, `v/1`, …; a delta is one chunk that names its two ends. Whatever takes long is done
by workers, beside the loop: the time is drawn like that of any work, and holds nothing up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine.pipeline.effects import (
    AssembleWeights,
    DropBuffer,
    Effect,
    FetchWeights,
    ForwardChunk,
    MakeDelta,
    OpenBuffer,
    ServeWeights,
)
from engine.pipeline.messages.to_relay import BufferHashed, ChunkHashed, DeltaMade, FetchFailed
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.policy.lineage import WeightsId
from engine.sim.bodies import After, Later, Post, carried
from engine.sim.chance import Chance
from engine.sim.checks import Oracle
from engine.sim.faults import Faults
from engine.weights.port import BufferId, DeltaManifest, WeightManifest

OPEN_S: Final = 0.001
FETCH_S: Final = 0.03
ASSEMBLE_S: Final = 0.02
DELTA_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedChunk:
    """A chunk on the link between two relays."""

    buffer_id: BufferId
    index: int
    content: str


Carry = Callable[[int, CarriedChunk], None]
"""To the body of another relay, over a link that loses and corrupts."""


@dataclass(slots=True, kw_only=True)
class WeightBuffer:
    arrival: int
    opens_at: float = 0.0
    expected: tuple[str, ...] = ()
    chunks: dict[int, str] = field(default_factory=dict)


class RelayBody:
    def __init__(
        self,
        *,
        chance: Chance,
        faults: Faults,
        oracle: Oracle,
        clock: Callable[[], float],
        takes: Callable[[float], float],
        later: Later,
        after: After,
        post: Post,
        carry: Carry = lambda host, chunk: None,
    ) -> None:
        """`takes`: how long work does that usually takes so many seconds."""
        self._chance, self._faults, self._oracle = chance, faults, oracle
        self._clock, self._takes = clock, takes
        self._later, self._after, self._post, self._carry = later, after, post, carry
        self._buffers: dict[BufferId, WeightBuffer] = {}
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self.num_useless_chunks = 0
        """Chunks that came although they were here already."""

    def perform(self, effect: Effect) -> None:
        match effect:
            case FetchWeights():
                self._fetch(effect)
            case OpenBuffer():
                opens_at = self._clock() + self._takes(OPEN_S)
                self._buffers[effect.buffer_id] = WeightBuffer(
                    arrival=effect.arrival, opens_at=opens_at, expected=effect.chunk_sha256
                )
            case ForwardChunk():
                content = self._buffers[effect.buffer_id].chunks[effect.index]
                self._carry(effect.to, CarriedChunk(buffer_id=effect.buffer_id, index=effect.index, content=content))
            case AssembleWeights():
                self._assemble(effect)
            case MakeDelta():
                self._make_delta(effect)
            case ServeWeights():
                self._serve(effect)
            case DropBuffer():
                self._buffers.pop(effect.buffer_id, None)
            case _:
                raise TypeError(f"a relay's body does not do {type(effect).__name__}")

    def on_carried(self, chunk: CarriedChunk) -> None:
        buffer = self._buffers.get(chunk.buffer_id)
        if buffer is None or chunk.index >= len(buffer.expected or buffer.chunks):
            return
        if buffer.opens_at > self._clock():
            self._after(buffer.opens_at - self._clock(), lambda: self.on_carried(chunk))
            return
        if chunk.index in buffer.chunks:
            self.num_useless_chunks += 1
            return
        (content,) = carried((chunk.content,), self._chance, self._faults)
        if content == buffer.expected[chunk.index]:
            buffer.chunks[chunk.index] = content
        hashed = ChunkHashed(arrival=buffer.arrival, buffer_id=chunk.buffer_id, index=chunk.index, sha256=content)
        self._later(0.0, hashed)

    def chunks_of(self, weights: WeightsId) -> tuple[str, ...]:
        chunks = self._buffers[BufferId(weights=weights)].chunks
        return tuple(chunks[index] for index in sorted(chunks))

    def _fetch(self, effect: FetchWeights) -> None:
        manifest, sent = effect.manifest, effect.payload
        assert isinstance(sent, tuple)
        buffer_id = BufferId(weights=manifest.weights)
        self._manifests[manifest.weights] = manifest
        self._buffers[buffer_id] = WeightBuffer(arrival=effect.arrival, chunks=dict(enumerate(sent)))
        fetch_s = self._takes(FETCH_S)
        for index, chunk in enumerate(sent):
            self._later(fetch_s, ChunkHashed(arrival=effect.arrival, buffer_id=buffer_id, index=index, sha256=chunk))

    def _assemble(self, effect: AssembleWeights) -> None:
        manifest = effect.manifest
        self._manifests[manifest.weights] = manifest
        whole = BufferId(weights=manifest.weights)
        needed = [BufferId(weights=delta.base) for delta in effect.path[:1]] + [
            delta.buffer_id for delta in effect.path
        ]
        if any(buffer_id not in self._buffers for buffer_id in needed):
            self._later(0.0, FetchFailed(arrival=effect.arrival, reason="what it is made of is gone"))
            return
        if effect.path:
            chunks = self._buffers[BufferId(weights=effect.path[0].base)].chunks
            result = "+".join(chunks[index] for index in sorted(chunks))
            for delta in effect.path:
                base, _, result_of_delta = self._buffers[delta.buffer_id].chunks[0].partition(" -> ")
                result = result_of_delta if base == result else "nonsense"
            self._buffers[whole] = WeightBuffer(arrival=effect.arrival, chunks=dict(enumerate(result.split("+"))))
        chunks = self._buffers[whole].chunks
        sha256 = "+".join(chunks[index] for index in sorted(chunks))
        self._later(self._takes(ASSEMBLE_S), BufferHashed(arrival=effect.arrival, sha256=sha256))

    def _make_delta(self, effect: MakeDelta) -> None:
        base, result = self._manifests[effect.base], self._manifests[effect.weights]
        chunk = f"{base.sha256} -> {result.sha256}"
        delta = DeltaManifest(
            weights=effect.weights,
            base=effect.base,
            base_sha256=base.sha256,
            result_sha256=result.sha256,
            num_bytes=1,
            chunk_bytes=1,
            chunk_sha256=(chunk,),
        )
        self._buffers[delta.buffer_id] = WeightBuffer(arrival=0, chunks={0: chunk})
        self._later(self._takes(DELTA_S), DeltaMade(weights=effect.weights, delta=delta))

    def _serve(self, effect: ServeWeights) -> None:
        manifest, chunks = self._manifests[effect.weights], self.chunks_of(effect.weights)
        self._oracle.on_serve(effect.weights, is_whole=chunks == manifest.chunk_sha256)
        payload = carried(chunks, self._chance, self._faults)
        self._post(effect.to, WeightsServed(manifest=manifest, payload=payload))
