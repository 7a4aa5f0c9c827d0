"""Hashes of a buffer's chunks, and of the whole from them. No torch: a relay that only carries weights uses this.

They are taken by xxh3 of 128 bits, at the speed of memory: against accidents on the way and in memory, not against
somebody who makes other bytes of the same hash. Such a one would have to know the job's token (`live/weights/link.py`).

Invariant: a buffer is either exactly what its manifest says or `TornWeights` is raised.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from threading import Lock

from xxhash import xxh3_128_hexdigest

from engine.signs import at_work
from engine.weights.chunks import Buffer, TornWeights, chunk_spans
from engine.weights.port import WeightManifest, WeightVersion

# One reads memory at some 10 GB/s, all together at what it gives; more would take the cores of a host's replicas.
HASHERS = 4

Hashed = Callable[[int, str], None]
"""A chunk's number and its hash."""


def hash_of(chunk: Buffer) -> str:
    return xxh3_128_hexdigest(chunk)


def hash_chunks(buffer: Buffer, chunk_bytes: int) -> tuple[str, ...]:
    """By several threads: hashing lets the interpreter's lock go."""
    hashes = ArrivingHashes(buffer, chunk_bytes, ())
    try:
        return hashes.result()
    finally:
        hashes.close()


class ArrivingHashes:
    """Hashes of a buffer's chunks, each taken as soon as the last of its bytes is there."""

    def __init__(
        self,
        buffer: Buffer,
        chunk_bytes: int,
        coming: Iterable[tuple[int, int]],
        hashed: Hashed = lambda index, digest: None,
    ) -> None:
        """`coming`: the bytes that will come, none twice; others are there. `hashed`: told by any thread."""
        self._buffer, self._chunk_bytes, self._hashed = memoryview(buffer), chunk_bytes, hashed
        self._left = [0] * len(list(chunk_spans(len(self._buffer), chunk_bytes)))
        for start, end in coming:
            for index, num_bytes in self._chunks_of(start, end):
                self._left[index] += num_bytes
        self._guard = Lock()
        self._hashers = ThreadPoolExecutor(max_workers=HASHERS, thread_name_prefix="hasher")
        self._hashing = {index: self._submit(index) for index, left in enumerate(self._left) if not left}

    def arrived(self, start: int, end: int) -> None:
        """On any thread."""
        with self._guard:
            for index, num_bytes in self._chunks_of(start, end):
                self._left[index] -= num_bytes
                if not self._left[index]:
                    self._hashing[index] = self._submit(index)

    def result(self) -> tuple[str, ...]:
        """Of all chunks, once all bytes have come."""
        assert len(self._hashing) == len(self._left), "not every byte has come"
        hashes = []
        for index in range(len(self._left)):
            with at_work("hash"):
                hashes.append(self._hashing[index].result())
        return tuple(hashes)

    def close(self) -> None:
        self._hashers.shutdown(wait=True, cancel_futures=True)  # nobody reads the memory any more

    def _chunks_of(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """And how many of these bytes each has."""
        size = self._chunk_bytes
        for index in range(start // size, -(-end // size)):
            yield index, min(end, (index + 1) * size) - max(start, index * size)

    def _submit(self, index: int) -> "Future[str]":
        return self._hashers.submit(self._hash, index)

    def _hash(self, index: int) -> str:
        digest = hash_of(self._buffer[index * self._chunk_bytes : (index + 1) * self._chunk_bytes])
        self._hashed(index, digest)
        return digest


def identity_of(chunk_hashes: Iterable[str]) -> str:
    """Of a whole whose chunks have these hashes: the hash of them."""
    return sha256("".join(chunk_hashes).encode()).hexdigest()


def hashed(manifest: WeightManifest, buffer: Buffer, *, chunk_bytes: int) -> WeightManifest:
    """With the hashes of what is in the buffer now."""
    return with_hashes(manifest, hash_chunks(buffer, chunk_bytes), chunk_bytes=chunk_bytes)


def with_hashes(manifest: WeightManifest, chunks: tuple[str, ...], *, chunk_bytes: int) -> WeightManifest:
    return replace(manifest, chunk_bytes=chunk_bytes, identity=identity_of(chunks), chunk_hashes=chunks)


def verify_weights(weights: WeightVersion) -> None:
    manifest = weights.manifest
    if len(weights.buffer) != manifest.num_bytes:
        raise TornWeights(f"weights={manifest.weights}: {len(weights.buffer)} bytes, not {manifest.num_bytes}")
    if identity_of(hash_chunks(weights.buffer, manifest.chunk_bytes)) != manifest.identity:
        raise TornWeights(f"weights={manifest.weights}: hash of the whole differs")
