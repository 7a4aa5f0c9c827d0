"""Hashes of a buffer's chunks, and the identity of the whole from them. No torch: relays transfer weights without it.

The hash is xxh3 with 128 bits, at the speed of memory. It detects accidents in transfer and in memory, but no
attacker who constructs a collision; such an attacker would need the job's token (`live/weights/link.py`).

Invariant: a buffer matches its manifest exactly, or `TornWeights` is raised.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from threading import Lock

from xxhash import xxh3_128_hexdigest

from engine.process.progress import working
from engine.weights.chunks import Buffer, TornWeights, chunk_spans
from engine.weights.port import WeightManifest, WeightVersion

# One thread reads some 10 GB/s, four saturate the memory; more would take cores from the host's replicas.
HASHERS = 4

Hashed = Callable[[int, str], None]
"""A chunk's number and its hash."""


def hash_of(chunk: Buffer) -> str:
    return xxh3_128_hexdigest(chunk)


def hash_chunks(buffer: Buffer, chunk_bytes: int) -> tuple[str, ...]:
    """Runs in several threads: hashing releases the interpreter's lock."""
    hashes = ArrivingHashes(buffer, chunk_bytes, ())
    try:
        return hashes.result()
    finally:
        hashes.close()


class ArrivingHashes:
    """Hashes of a buffer's chunks, each computed as soon as all its bytes have arrived."""

    def __init__(
        self,
        buffer: Buffer,
        chunk_bytes: int,
        coming: Iterable[tuple[int, int]],
        hashed: Hashed = lambda index, digest: None,
    ) -> None:
        """`coming`: the bytes still to arrive, none twice; all others are present. `hashed`: called on any thread."""
        self._buffer, self._chunk_bytes, self._hashed = memoryview(buffer), chunk_bytes, hashed
        self._left = [0] * len(list(chunk_spans(len(self._buffer), chunk_bytes)))
        for start, end in coming:
            for index, num_bytes in self._chunks_of(start, end):
                self._left[index] += num_bytes
        self._guard = Lock()
        self._hashers = ThreadPoolExecutor(max_workers=HASHERS, thread_name_prefix="hasher")
        self._hashing = {index: self._submit(index) for index, left in enumerate(self._left) if not left}

    def arrived(self, start: int, end: int) -> None:
        """May be called on any thread."""
        with self._guard:
            for index, num_bytes in self._chunks_of(start, end):
                self._left[index] -= num_bytes
                if not self._left[index]:
                    self._hashing[index] = self._submit(index)

    def result(self) -> tuple[str, ...]:
        """The hashes of all chunks; call it when all bytes have arrived."""
        assert len(self._hashing) == len(self._left), "not every byte has arrived"
        hashes = []
        for index in range(len(self._left)):
            with working("hash"):
                hashes.append(self._hashing[index].result())
        return tuple(hashes)

    def close(self) -> None:
        self._hashers.shutdown(wait=True, cancel_futures=True)  # afterwards no thread reads the memory

    def _chunks_of(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Chunks of these bytes, and the number of these bytes in each."""
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
    """The identity of a whole: the hash of its chunks' hashes."""
    return sha256("".join(chunk_hashes).encode()).hexdigest()


def hashed(manifest: WeightManifest, buffer: Buffer, *, chunk_bytes: int) -> WeightManifest:
    """The manifest with the hashes of the buffer's present content."""
    return with_hashes(manifest, hash_chunks(buffer, chunk_bytes), chunk_bytes=chunk_bytes)


def with_hashes(manifest: WeightManifest, chunks: tuple[str, ...], *, chunk_bytes: int) -> WeightManifest:
    return replace(manifest, chunk_bytes=chunk_bytes, identity=identity_of(chunks), chunk_hashes=chunks)


def verify_weights(weights: WeightVersion) -> None:
    manifest = weights.manifest
    if len(weights.buffer) != manifest.num_bytes:
        raise TornWeights(f"weights={manifest.weights}: {len(weights.buffer)} bytes, expected {manifest.num_bytes}")
    if identity_of(hash_chunks(weights.buffer, manifest.chunk_bytes)) != manifest.identity:
        raise TornWeights(f"weights={manifest.weights}: hash of the whole differs")
