"""Lossless sparse deltas between two versions of one layout: positions and new values of the elements that differ.

    delta = block, block, …      block = header │ gaps │ escaped gaps │ new values
    new values of 2-byte elements: low bytes │ one bit each: the high byte differs too │ those high bytes

A bf16 weight changes only if an update is as large as its last bit, so at the learning rates of reinforcement learning
about one in a hundred changes in a step.

Invariants:
- bytes overwrite and are not added: applying a delta twice, or again after an interruption, gives the same bits;
- equal inputs give equal deltas in every process;
- elements are compared as bits: NaNs, infinities and negative zeros survive;
- no delta is made that would be as large as the whole version or larger.
"""

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.process.progress import working
from engine.weights.chunks import TornWeights
from engine.weights.hashes import hash_chunks
from engine.weights.port import DeltaManifest, TensorEntry, WeightDelta, WeightManifest, WeightVersion

Array = NDArray[Any]

# offset of the block in the buffer; changed elements, escaped gaps, changed high bytes; element size, gap size
_HEADER: Final = struct.Struct("<QIIIBB2x")
ELEMENT_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_BITS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32}
# Temporaries of a block (a mask and the positions) take a few MB, close to the size of the caches.
BLOCK_ELEMENTS: Final = 2**21
# Memory of a block at most: both versions, positions of 8 bytes each, and the output.
BLOCK_BYTES: Final = 32 * BLOCK_ELEMENTS
_ALIGNMENT: Final = 8
# As many as for hashes: more would take cores from the host's replicas.
THREADS: Final = 4

Item = TypeVar("Item")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class _Span:
    """Neighbouring tensors of one element size, with the gaps between them."""

    start: int
    end: int
    element_bytes: int


def make_delta(base: WeightVersion, new: WeightVersion, *, chunk_bytes: int) -> WeightDelta | None:
    """None: the delta would not be smaller than the new version, or the layouts differ."""
    before, after = base.manifest, new.manifest
    if before.tensors != after.tensors or before.num_bytes != after.num_bytes:
        return None
    encoded = _encode(base.buffer, new.buffer, after)
    if encoded is None:
        return None
    manifest = DeltaManifest(
        weights=after.weights,
        base=before.weights,
        base_identity=before.identity,
        result_identity=after.identity,
        num_bytes=len(encoded),
        chunk_bytes=chunk_bytes,
        chunk_hashes=hash_chunks(encoded, chunk_bytes),
    )
    return WeightDelta(manifest=manifest, buffer=memoryview(encoded).toreadonly())


def apply_delta(delta: bytes | bytearray | memoryview, buffer: bytearray | memoryview) -> None:
    """Turns the base in `buffer` into the result. The caller verifies the hash of the result."""
    source, target = np.frombuffer(delta, dtype=np.uint8), np.frombuffer(buffer, dtype=np.uint8)
    for _ in _in_parallel(lambda at: _apply_block(source, at, target), _block_starts(source)):
        pass


def _encode(old: memoryview, new: memoryview, manifest: WeightManifest) -> bytearray | None:
    before, after = np.frombuffer(old, dtype=np.uint8), np.frombuffer(new, dtype=np.uint8)

    def encode(block: _Span) -> bytes:
        old, new = (each[block.start : block.end].view(_BITS[block.element_bytes]) for each in (before, after))
        return _encode_block(old, new, block.start)

    encoded = bytearray()
    with closing(_in_parallel(encode, _blocks(manifest))) as blocks:
        for block in blocks:
            encoded += block
            if len(encoded) >= manifest.num_bytes:
                return None
    return encoded if manifest.num_bytes else None


def _in_parallel(work: Callable[[Item], Done], items: Iterable[Item]) -> Generator[Done, None, None]:
    """Runs in several threads and yields in the order of the items: numpy releases the interpreter's lock."""
    with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="delta") as threads:
        pending: deque[Future[Done]] = deque()
        try:
            for item in items:
                pending.append(threads.submit(work, item))
                if len(pending) >= 2 * THREADS:
                    yield _await(pending.popleft())
            while pending:
                yield _await(pending.popleft())
        finally:
            threads.shutdown(wait=True, cancel_futures=True)


def _await(block: Future[Done]) -> Done:
    with working("delta"):
        return block.result()


def _blocks(manifest: WeightManifest) -> Iterator[_Span]:
    for span in _spans(manifest.tensors, manifest.num_bytes):
        step = BLOCK_ELEMENTS * span.element_bytes
        for start in range(span.start, span.end, step):
            yield _Span(start, min(start + step, span.end), span.element_bytes)


def _spans(tensors: tuple[TensorEntry, ...], num_bytes: int) -> Iterator[_Span]:
    """Spans cover the buffer without a hole; each is a multiple of its element size (tensors are aligned to more)."""
    start, element_bytes = 0, 1
    for entry in tensors:
        own = ELEMENT_BYTES.get(entry.dtype, 1)
        if own != element_bytes:
            if entry.offset > start:
                yield _Span(start, entry.offset, element_bytes)
            start, element_bytes = entry.offset, own
    last_end = num_bytes - (num_bytes - start) % element_bytes
    if last_end > start:
        yield _Span(start, last_end, element_bytes)
    if num_bytes > last_end:
        yield _Span(last_end, num_bytes, 1)


def _encode_block(old: Array, new: Array, offset: int) -> bytes:
    changed = np.flatnonzero(old != new)
    if not len(changed):
        return b""
    gaps = np.diff(changed, prepend=-1) - 1
    num_long8, num_long16 = int(np.count_nonzero(gaps >= 0xFF)), int(np.count_nonzero(gaps >= 0xFFFF))
    gap_bytes = 1 if num_long8 * 4 <= len(gaps) + num_long16 * 4 else 2
    escape = 0xFF if gap_bytes == 1 else 0xFFFF
    short = np.minimum(gaps, escape).astype(_BITS[gap_bytes])
    long = gaps[gaps >= escape].astype(np.uint32)
    values, num_high = _split(old[changed], new[changed]) if new.itemsize == 2 else ([new[changed]], 0)
    header = _HEADER.pack(offset, len(changed), len(long), num_high, new.itemsize, gap_bytes)
    return header + b"".join(part.tobytes() + bytes(-part.nbytes % _ALIGNMENT) for part in (short, long, *values))


def _split(old: Array, new: Array) -> tuple[list[Array], int]:
    """A small update changes the low byte of a bf16 and rarely the high one."""
    is_high = (old ^ new) > 0xFF
    high = (new[is_high] >> 8).astype(np.uint8)
    return [new.astype(np.uint8), np.packbits(is_high), high], len(high)


def _block_starts(source: Array) -> Iterator[int]:
    at = 0
    while at < len(source):
        yield at
        _, num_changed, num_long, num_high, element_bytes, gap_bytes = _header(source, at)
        parts = [num_changed * gap_bytes, num_long * 4, num_changed * element_bytes]
        if element_bytes == 2:
            parts[2:] = [num_changed, (num_changed + 7) // 8, num_high]
        at += _HEADER.size + sum(num_bytes + -num_bytes % _ALIGNMENT for num_bytes in parts)


def _header(source: Array, at: int) -> tuple[int, ...]:
    if at + _HEADER.size > len(source):
        raise TornWeights("a delta ends in the middle of a block")
    offset, num_changed, *others, element_bytes, gap_bytes = _HEADER.unpack_from(source.data, at)
    if element_bytes not in _BITS or gap_bytes not in (1, 2) or offset % element_bytes or not num_changed:
        raise TornWeights("a block of a delta has an invalid header")
    return offset, num_changed, *others, element_bytes, gap_bytes


def _apply_block(source: Array, at: int, target: Array) -> None:
    offset, num_changed, num_long, num_high, element_bytes, gap_bytes = _header(source, at)
    short, at = _part(source, at + _HEADER.size, num_changed, gap_bytes)
    long, at = _part(source, at, num_long, 4)
    positions = _positions(short, long, 0xFF if gap_bytes == 1 else 0xFFFF)
    whole = (len(target) - offset) // element_bytes
    if int(positions[-1]) >= whole:
        raise TornWeights("a delta reaches beyond its buffer")
    room = target[offset : offset + whole * element_bytes]
    if element_bytes != 2:
        values, _ = _part(source, at, num_changed, element_bytes)
        room.view(_BITS[element_bytes])[positions] = values
        return
    low, at = _part(source, at, num_changed, 1)
    bits, at = _part(source, at, (num_changed + 7) // 8, 1)
    high, _ = _part(source, at, num_high, 1)
    is_high = np.unpackbits(bits, count=num_changed).view(np.bool_)
    if int(np.count_nonzero(is_high)) != num_high:
        raise TornWeights("a block of a delta has a wrong number of high bytes")
    room[0::2][positions] = low
    room[1::2][positions[is_high]] = high


def _positions(short: Array, long: Array, escape: int) -> Array:
    steps = short.astype(np.int64)
    is_long = short == escape
    if int(np.count_nonzero(is_long)) != len(long):
        raise TornWeights("a block of a delta has a wrong number of gaps")
    steps[is_long] = long
    steps += 1
    positions = np.cumsum(steps)
    positions -= 1
    return positions


def _part(source: Array, at: int, count: int, item_bytes: int) -> tuple[Array, int]:
    end = at + count * item_bytes
    if end > len(source):
        raise TornWeights("a delta ends in the middle of a block")
    return source[at:end].view(_BITS[item_bytes]), end + -end % _ALIGNMENT
