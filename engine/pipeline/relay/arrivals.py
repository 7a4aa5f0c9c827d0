"""Versions arriving at a relay, chunk by chunk.

    announced without hashes ──chunks, checked by the sender's hash──▶ all here ──hashes──▶ checked by the manifest

Invariants:
- a chunk counts only if it matches its sender's hash, and a version only if all chunks match its manifest;
- each arrival has its own number, so that a late message about a dropped buffer is not taken for another's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from engine.pipeline.effects import OpenBuffer
from engine.pipeline.messages.to_driver import WeightsTaken
from engine.pipeline.messages.to_relay import ChunkHashed
from engine.policy.lineage import WeightsId
from engine.weights.port import BufferId, DeltaManifest, WeightManifest

Path = tuple[DeltaManifest, ...]
"""Consecutive deltas, oldest first."""


def whole_of(weights: WeightsId) -> BufferId:
    return BufferId(weights=weights)


def suffix_from(path: Path, is_held: Callable[[DeltaManifest], bool], *, below_bytes: int) -> Path:
    """The fewest deltas that lead from a held base to the end of the path; none if the whole is as cheap."""
    for start in reversed(range(len(path))):
        if is_held(path[start]):
            suffix = path[start:]
            is_unbroken = all(after.base == before.weights for before, after in pairwise(suffix))
            return suffix if is_unbroken and sum(delta.num_bytes for delta in suffix) < below_bytes else ()
    return ()


@dataclass(slots=True, kw_only=True)
class Arrival:
    number: int
    manifest: WeightManifest
    pinned: bool
    path: Path
    source: int | None
    """The sending host; None: the trainer."""
    opened_at: float
    asked_at: float
    progressed_at: float
    num_travelling: int = 0
    """Bytes to transfer, at the start of the arrival."""
    travels_later: bool = False
    """Forwarded as a delta once it is here; else its chunks are forwarded as they arrive."""
    is_assembling: bool = False
    right: dict[BufferId, dict[int, str]] = field(default_factory=dict)
    """The chunks that have arrived, and their hashes."""

    @property
    def weights(self) -> WeightsId:
        return self.manifest.weights

    @property
    def num_chunks(self) -> dict[BufferId, int]:
        if self.path:
            return {delta.buffer_id: len(delta.chunk_hashes) for delta in self.path}
        return {whole_of(self.weights): self.manifest.num_chunks}

    @property
    def hashes(self) -> dict[BufferId, tuple[str, ...]]:
        """Chunk hashes by buffer, as far as known."""
        if self.path:
            return {delta.buffer_id: delta.chunk_hashes for delta in self.path}
        return {whole_of(self.weights): self.manifest.chunk_hashes} if self.manifest.is_hashed else {}

    def missing(self) -> tuple[tuple[BufferId, tuple[int, ...]], ...]:
        wants = (
            (buffer_id, tuple(index for index in range(count) if not self.has(buffer_id, index)))
            for buffer_id, count in self.num_chunks.items()
        )
        return tuple((buffer_id, indices) for buffer_id, indices in wants if indices)

    def take_kept(self, is_kept: Callable[[BufferId], bool]) -> None:
        """Counts deltas that are held already as arrived."""
        for delta in self.path:
            if is_kept(delta.buffer_id):
                self.right[delta.buffer_id] = dict(enumerate(delta.chunk_hashes))

    def take(self, chunk: ChunkHashed, now: float) -> bool:
        """False: the bytes do not match the chunk."""
        is_right = not chunk.is_torn and chunk.index < self.num_chunks.get(chunk.buffer_id, 0)
        if not is_right or not self._matches(chunk.buffer_id, chunk.index, chunk.digest):
            return False
        self.right.setdefault(chunk.buffer_id, {})[chunk.index] = chunk.digest
        self.progressed_at = now
        return True

    def is_of(self, manifest: WeightManifest) -> bool:
        """True if the manifest is of the same version in the same chunks, as far as hashes are known."""
        are_hashed = self.manifest.is_hashed and manifest.is_hashed
        return self.manifest == manifest if are_hashed else self.manifest.cut == manifest.cut

    def learn(self, manifest: WeightManifest) -> bool:
        """Takes the hashes. False: chunks that have arrived do not match them."""
        self.manifest = manifest
        return all(
            self._matches(buffer_id, index, digest)
            for buffer_id, chunks in self.right.items()
            for index, digest in chunks.items()
        )

    def _matches(self, buffer_id: BufferId, index: int, digest: str) -> bool:
        hashes = self.hashes.get(buffer_id)
        return hashes is None or hashes[index] == digest

    def count_bytes(self) -> None:
        deltas = [(delta.buffer_id, delta.num_bytes) for delta in self.path]
        whole = [] if self.path else [(whole_of(self.weights), self.manifest.num_bytes)]
        self.num_travelling = sum(num_bytes for buffer_id, num_bytes in deltas + whole if buffer_id not in self.right)

    def taken_by(self, host: int, now: float) -> WeightsTaken:
        return WeightsTaken(
            host=host,
            weights=self.weights,
            num_bytes=self.num_travelling,
            seconds=now - self.opened_at,
            by="copy" if self.source is None else "delta" if self.path else "whole",
        )

    def can_come_by(self, path: Path) -> bool:
        """True if the relay that announced this path has everything that is still missing."""
        return all(
            delta in path or len(self.right.get(delta.buffer_id, ())) == len(delta.chunk_hashes) for delta in self.path
        )

    def has(self, buffer_id: BufferId, index: int) -> bool:
        return index in self.right.get(buffer_id, ())

    def openings(self) -> Iterator[OpenBuffer]:
        for delta in self.path:
            if delta.buffer_id in self.right:
                continue
            yield OpenBuffer(
                arrival=self.number,
                buffer_id=delta.buffer_id,
                num_bytes=delta.num_bytes,
                chunk_bytes=delta.chunk_bytes,
                chunk_hashes=delta.chunk_hashes,
            )
        if not self.path:
            manifest = self.manifest
            yield OpenBuffer(
                arrival=self.number,
                buffer_id=whole_of(self.weights),
                num_bytes=manifest.num_bytes,
                chunk_bytes=manifest.chunk_bytes,
                chunk_hashes=manifest.chunk_hashes,
            )


class Arrivals:
    def __init__(self) -> None:
        self._by_weights: dict[WeightsId, Arrival] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Arrival]:
        return iter(list(self._by_weights.values()))

    def open(self, manifest: WeightManifest, *, pinned: bool, path: Path, source: int | None, now: float) -> Arrival:
        self._number += 1
        arrival = Arrival(
            number=self._number,
            manifest=manifest,
            pinned=pinned,
            path=path,
            source=source,
            opened_at=now,
            asked_at=now,
            progressed_at=now,
        )
        self._by_weights[manifest.weights] = arrival
        return arrival

    def get(self, weights: WeightsId) -> Arrival | None:
        return self._by_weights.get(weights)

    def numbered(self, number: int) -> Arrival | None:
        return next((arrival for arrival in self if arrival.number == number), None)

    def close(self, arrival: Arrival) -> None:
        del self._by_weights[arrival.weights]
