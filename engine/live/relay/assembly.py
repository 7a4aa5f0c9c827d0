"""The memory of a version, made from the trainer's offer, from chunks that were sent, or from deltas.

Invariants:
- what is served is the very memory whose hashes were taken;
- all of it may run on any thread: of the relay it touches only the buffers, which guard themselves;
- what cannot be made leaves no memory behind.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from engine.live.relay.buffers import WeightBuffer, WeightBuffers
from engine.live.weights.handover import copy_part, pull
from engine.live.weights.offered_bytes import OfferedBytes, OfferedPart
from engine.live.weights.segments import Segment, own_memory
from engine.pipeline.effects import AssembleWeights, FetchWeights
from engine.pipeline.relay.arrivals import whole_of
from engine.weights.chunks import (
    ArrivingHashes,
    TornWeights,
    copy_bytes,
    hash_chunks,
    identity_of,
    verify_weights,
    with_hashes,
)
from engine.weights.delta import apply_delta
from engine.weights.port import BufferId, DeltaManifest, WeightManifest, WeightVersion


class Assembly:
    def __init__(self, *, owner: str, token: bytes, buffers: WeightBuffers) -> None:
        self._owner, self._token, self._buffers = owner, token, buffers

    def fetched(self, effect: FetchWeights) -> tuple[WeightBuffer, WeightManifest]:
        """The weights that the trainer offers, and their manifest with the hashes taken."""
        manifest, offered = effect.manifest, effect.payload
        assert isinstance(offered, OfferedBytes), f"weights were offered as {type(offered).__name__}"
        first, *others = offered.parts
        if not others and first.shared.memory == own_memory():
            segment = Segment.adopt(self._owner, first.shared)
            chunks = hash_chunks(segment.buffer, effect.chunk_bytes)
        else:
            segment, chunks = self._put_together(manifest, offered, effect.chunk_bytes)
        try:
            if manifest.is_hashed:
                verify_weights(WeightVersion(manifest=manifest, buffer=segment.buffer))
        except TornWeights:
            segment.remove()
            raise
        cut = with_hashes(manifest, chunks, chunk_bytes=effect.chunk_bytes)
        return all_here(segment.buffer, segment, cut, arrival=effect.arrival), cut

    def assembled(self, effect: AssembleWeights) -> tuple[WeightBuffer, str]:
        """With the identity of what is there."""
        manifest, path = effect.manifest, effect.path
        if not path:
            content = self._present(whole_of(manifest.weights))
            if not content.is_whole:
                raise TornWeights("not every chunk of it is here")
            return content, identity_of(content.expected)
        base = self._present(whole_of(path[0].base))
        deltas = [self._present(delta.buffer_id) for delta in path]
        segment = Segment.create(self._owner, manifest.num_bytes)
        copy_bytes(base.memory, segment.buffer)
        try:
            for delta in deltas:
                apply_delta(delta.memory, segment.buffer)
        except TornWeights:
            segment.remove()
            raise
        content = all_here(segment.buffer, segment, manifest, arrival=effect.arrival)
        return content, identity_of(hash_chunks(segment.buffer, manifest.chunk_bytes))

    def _present(self, buffer_id: BufferId) -> WeightBuffer:
        content = self._buffers.get(buffer_id)
        if content is None:  # it was dropped meanwhile
            raise TornWeights("what it is made of is gone")
        return content

    def _put_together(
        self, manifest: WeightManifest, offered: OfferedBytes, chunk_bytes: int
    ) -> tuple[Segment, tuple[str, ...]]:
        """From all hosts at once; each chunk is hashed as soon as it is there."""
        segment = Segment.create(self._owner, manifest.num_bytes)
        coming = [span for part in offered.parts for span in part.spans.of_version]

        def take(part: OfferedPart) -> None:
            if part.shared.memory == own_memory():
                copy_part(part, segment.buffer, hashes.arrived)
            else:
                pull(part, self._token, manifest.weights, segment.buffer, hashes.arrived)

        try:
            with (
                closing(ArrivingHashes(segment.buffer, chunk_bytes, coming)) as hashes,
                ThreadPoolExecutor(max_workers=len(offered.parts), thread_name_prefix="relay-pull") as beside,
            ):
                taken = [beside.submit(take, part) for part in offered.parts[1:]]
                take(offered.parts[0])
                for each in taken:
                    each.result()
                return segment, hashes.result()
        except TornWeights:
            segment.remove()
            raise


def all_here(
    memory: memoryview, segment: Segment | None, manifest: WeightManifest | DeltaManifest, *, arrival: int = 0
) -> WeightBuffer:
    return WeightBuffer(
        memory=memory,
        segment=segment,
        chunk_bytes=manifest.chunk_bytes,
        arrival=arrival,
        states=dict.fromkeys(range(len(manifest.chunk_sha256)), "here"),
    )
