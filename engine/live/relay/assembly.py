"""Assembles a version in memory: from the trainer's offer, from received chunks, or from deltas.

    offer ──▶ begun: its buffer ──▶ hashed: each chunk, once its last byte has arrived ──▶ all hashes

Invariants:
- the memory that is served is the memory that was hashed;
- every method may run on any thread: the only shared state is the buffers, which lock themselves;
- a failed assembly leaves no memory behind.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from engine.live.relay.buffers import WeightBuffer, WeightBuffers
from engine.live.relay.memory import RelayMemory
from engine.live.weights.handover import copy_part, pull
from engine.live.weights.offered_bytes import OfferedBytes, OfferedPart
from engine.live.weights.segments import Segment, own_memory
from engine.pipeline.effects import AssembleWeights, FetchWeights
from engine.pipeline.relay.arrivals import whole_of
from engine.policy.lineage import WeightsId
from engine.weights.chunks import TornWeights, copy_bytes
from engine.weights.delta import apply_delta
from engine.weights.hashes import ArrivingHashes, Hashed, hash_chunks, identity_of, with_hashes
from engine.weights.port import BufferId, DeltaManifest, WeightManifest


class Assembly:
    def __init__(self, *, owner: str, token: bytes, memory: RelayMemory, buffers: WeightBuffers) -> None:
        self._owner, self._token, self._memory, self._buffers = owner, token, memory, buffers

    def fetched(
        self,
        effect: FetchWeights,
        begun: Callable[[WeightBuffer], None] = lambda content: None,
        hashed: Hashed = lambda index, digest: None,
    ) -> tuple[WeightBuffer, WeightManifest]:
        """Reads the weights that the trainer offers; returns them and their manifest with hashes."""
        manifest, offered = effect.manifest, effect.payload
        assert isinstance(offered, OfferedBytes), f"weights were offered as {type(offered).__name__}"
        near = offered.parts[0] if len(offered.parts) == 1 and _is_near(offered.parts[0]) else None
        segment = self._memory.take(manifest.num_bytes) if near is None else Segment.adopt(self._owner, near.shared)
        content = _make_buffer(segment.buffer, segment, effect.chunk_bytes, effect.arrival)
        begun(content)

        def is_here(index: int, digest: str) -> None:
            content.digests[index] = digest
            hashed(index, digest)

        arriving = [span for part in offered.parts if near is None for span in part.spans.of_version]
        try:
            with closing(ArrivingHashes(segment.buffer, effect.chunk_bytes, arriving, is_here)) as hashes:
                if near is None:
                    self._copy_parts(manifest.weights, offered, segment.buffer, hashes)
                cut = with_hashes(manifest, hashes.result(), chunk_bytes=effect.chunk_bytes)
            if manifest.is_hashed and manifest.identity != cut.identity:
                raise TornWeights
        except TornWeights:
            self._memory.free(segment)
            raise
        return content, cut

    def assembled(self, effect: AssembleWeights) -> tuple[WeightBuffer, str]:
        """Returns the version and the identity of its bytes."""
        manifest, path = effect.manifest, effect.path
        if not path:
            content = self._require(whole_of(manifest.weights))
            return content, identity_of(content.hashes)
        base = self._require(whole_of(path[0].base))
        deltas = [self._require(delta.buffer_id) for delta in path]
        segment = self._memory.take(manifest.num_bytes)
        copy_bytes(base.memory, segment.buffer)
        try:
            for delta in deltas:
                apply_delta(delta.memory, segment.buffer)
        except TornWeights:
            self._memory.free(segment)
            raise
        content = _make_buffer(segment.buffer, segment, manifest.chunk_bytes, effect.arrival)
        content.digests.update(enumerate(hash_chunks(segment.buffer, manifest.chunk_bytes)))
        return content, identity_of(content.hashes)

    def _require(self, buffer_id: BufferId) -> WeightBuffer:
        content = self._buffers.get(buffer_id)
        if content is None:  # dropped since the brain decided
            raise TornWeights("a base or delta of this version was dropped")
        return content

    def _copy_parts(
        self, weights: WeightsId, offered: OfferedBytes, version: memoryview, hashes: ArrivingHashes
    ) -> None:
        """Copies the parts of all trainer hosts in parallel."""

        def take(part: OfferedPart) -> None:
            if _is_near(part):
                copy_part(part, version, hashes.arrived)
            else:
                pull(part, self._token, weights, version, hashes.arrived)

        with ThreadPoolExecutor(max_workers=len(offered.parts), thread_name_prefix="relay-pull") as pool:
            copies = [pool.submit(take, part) for part in offered.parts[1:]]
            take(offered.parts[0])
            for copy in copies:
                copy.result()


def all_here(memory: memoryview, manifest: DeltaManifest) -> WeightBuffer:
    content = _make_buffer(memory, None, manifest.chunk_bytes, 0)
    content.digests.update(enumerate(manifest.chunk_hashes))
    return content


def _make_buffer(memory: memoryview, segment: Segment | None, chunk_bytes: int, arrival: int) -> WeightBuffer:
    return WeightBuffer(memory=memory, segment=segment, chunk_bytes=chunk_bytes, arrival=arrival)


def _is_near(part: OfferedPart) -> bool:
    return part.shared.memory == own_memory()
