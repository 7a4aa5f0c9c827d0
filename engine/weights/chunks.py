"""Hashes of a buffer's chunks, and of the whole from them. No torch: a relay that only carries weights uses this.

Invariant: a buffer is either exactly what its manifest says or `TornWeights` is raised.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from threading import Lock

from engine.signs import at_work
from engine.weights.port import WeightManifest, WeightVersion

Buffer = bytes | bytearray | memoryview

# Chain broadcast is near its best from 1 to 16 MB a chunk over a wide range of links; small models are one chunk.
CHUNK_BYTES = 4 * 2**20
# One takes 1.6 GB/s, a fast link carries several times that; more would take the cores of a host's replicas from them.
HASHERS = 4
# Of what is done in one go between two signs of life.
PIECE_BYTES = 64 * 2**20


class TornWeights(Exception):
    """The bytes are not those of their manifest."""

    retryable = True  # fetch again: the sender still has the whole version

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


class WeightsGone(TornWeights):
    """They were dropped meanwhile, because a newer version is there: no fault of anybody's."""


def copy_bytes(source: Buffer, target: memoryview) -> None:
    """Piece by piece: one copy of gigabytes would hold up every other thread of the process."""
    view = memoryview(source)
    for start, end in chunk_spans(len(view), PIECE_BYTES):
        with at_work("copy", num_bytes=end - start):
            target[start:end] = view[start:end]


def chunk_spans(num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk; the last may be short."""
    for start in range(0, num_bytes, chunk_bytes):
        yield start, min(start + chunk_bytes, num_bytes)


def hash_chunks(buffer: Buffer, chunk_bytes: int) -> tuple[str, ...]:
    """By several threads: hashing lets the interpreter's lock go."""
    view = memoryview(buffer)
    spans = list(chunk_spans(len(view), chunk_bytes))

    def hash_of(span: tuple[int, int]) -> str:
        return sha256(view[span[0] : span[1]]).hexdigest()

    with ThreadPoolExecutor(max_workers=HASHERS, thread_name_prefix="hasher") as hashers:
        coming = [hashers.submit(hash_of, span) for span in spans]
        hashes = []
        for hashing, (start, end) in zip(coming, spans, strict=True):
            with at_work("hash", num_bytes=end - start):
                hashes.append(hashing.result())
    return tuple(hashes)


class ArrivingHashes:
    """Hashes of a buffer's chunks, each taken as soon as the last of its bytes is there."""

    def __init__(self, buffer: Buffer, chunk_bytes: int, coming: Iterable[tuple[int, int]]) -> None:
        """`coming`: the bytes that will come, none twice; others are there."""
        self._buffer, self._chunk_bytes = memoryview(buffer), chunk_bytes
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
            with at_work("hash", num_bytes=self._chunk_bytes):
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
        chunk = self._buffer[index * self._chunk_bytes : (index + 1) * self._chunk_bytes]
        return self._hashers.submit(lambda: sha256(chunk).hexdigest())


def identity_of(chunk_sha256: Iterable[str]) -> str:
    """Of a whole whose chunks have these hashes: the hash of them."""
    return sha256("".join(chunk_sha256).encode()).hexdigest()


def hashed(manifest: WeightManifest, buffer: Buffer, *, chunk_bytes: int) -> WeightManifest:
    """With the hashes of what is in the buffer now."""
    return with_hashes(manifest, hash_chunks(buffer, chunk_bytes), chunk_bytes=chunk_bytes)


def with_hashes(manifest: WeightManifest, chunks: tuple[str, ...], *, chunk_bytes: int) -> WeightManifest:
    return replace(manifest, chunk_bytes=chunk_bytes, sha256=identity_of(chunks), chunk_sha256=chunks)


def verify_weights(weights: WeightVersion) -> None:
    manifest = weights.manifest
    if len(weights.buffer) != manifest.num_bytes:
        raise TornWeights(f"weights={manifest.weights}: {len(weights.buffer)} bytes, not {manifest.num_bytes}")
    if identity_of(hash_chunks(weights.buffer, manifest.chunk_bytes)) != manifest.sha256:
        raise TornWeights(f"weights={manifest.weights}: hash of the whole differs")
