"""Packs named tensors into the flat buffer of a weight version, and maps them back.

Invariants:
- packing copies, so further training does not change a version; mapping does not copy;
- packing and mapping keep all bits, for every dtype;
- every tensor starts at a multiple of ALIGNMENT, and gaps are zero, so equal weights have equal hashes.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from engine.models.pieces import copy_tensor
from engine.policy.lineage import WeightsId
from engine.weights.chunks import CHUNK_BYTES
from engine.weights.port import LowRank, TensorEntry, WeightManifest, WeightVersion
from engine.weights.sums import sums_of

Allocate = Callable[[int], memoryview]
"""Returns a writable buffer of the given number of zero bytes."""

ALIGNMENT = 64  # a cache line, and a multiple of every element size
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


def pack_weights(
    tensors: Mapping[str, Tensor],
    *,
    weights: WeightsId,
    chunk_bytes: int = CHUNK_BYTES,
    allocate: Allocate | None = None,
    low_rank: LowRank | None = None,
) -> WeightVersion:
    """Computes no hashes, so that the caller waits for the copy only. `allocate` provides the buffer."""
    entries = lay_out(tensors)

    def fill(buffer: memoryview) -> tuple[int, ...]:
        for entry in entries:
            copy_tensor(_view(buffer, entry), tensors[entry.name].detach(), what="copy")
        return sums_of(tensors[entry.name] for entry in entries)

    return pack_filled(entries, fill, weights=weights, chunk_bytes=chunk_bytes, allocate=allocate, low_rank=low_rank)


def pack_filled(
    entries: tuple[TensorEntry, ...],
    fill: Callable[[memoryview], tuple[int, ...]],
    *,
    weights: WeightsId,
    chunk_bytes: int = CHUNK_BYTES,
    allocate: Allocate | None = None,
    low_rank: LowRank | None = None,
) -> WeightVersion:
    """`pack_weights` with a buffer that `fill` writes; `fill` returns the sums of the tensors."""
    num_bytes = bytes_of(entries)
    buffer = memoryview(bytearray(num_bytes)) if allocate is None else allocate(num_bytes)
    sums = fill(buffer)
    manifest = unhashed(entries, weights=weights, chunk_bytes=chunk_bytes, low_rank=low_rank, sums=sums)
    return WeightVersion(manifest=manifest, buffer=buffer.toreadonly())


def unhashed(
    entries: tuple[TensorEntry, ...],
    *,
    weights: WeightsId,
    chunk_bytes: int = CHUNK_BYTES,
    low_rank: LowRank | None = None,
    sums: tuple[int, ...] = (),
) -> WeightManifest:
    return WeightManifest(
        weights=weights,
        num_bytes=bytes_of(entries),
        chunk_bytes=chunk_bytes,
        identity="",
        chunk_hashes=(),
        tensors=entries,
        low_rank=low_rank,
        sums=sums,
    )


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[TensorEntry, ...]:
    """The tensors' entries in a version. Only shape and dtype are read, so meta tensors will do."""
    offset = 0
    entries: list[TensorEntry] = []
    for name, tensor in tensors.items():
        entry = TensorEntry(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offset=offset,
            num_bytes=tensor.numel() * tensor.element_size(),
        )
        entries.append(entry)
        offset += room_of(entry)
    return tuple(entries)


def room_of(entry: TensorEntry) -> int:
    """The entry's bytes, rounded up to the alignment."""
    return math.ceil(entry.num_bytes / ALIGNMENT) * ALIGNMENT


def bytes_of(entries: Iterable[TensorEntry]) -> int:
    return sum(map(room_of, entries))


def map_weights(weights: WeightVersion) -> dict[str, Tensor]:
    """Views of the buffer, which must not be written."""
    return {entry.name: _view(weights.buffer, entry) for entry in weights.manifest.tensors}


def _view(buffer: memoryview, entry: TensorEntry) -> Tensor:
    return view_of_values(buffer, DTYPES[entry.dtype], entry.offset, entry.num_bytes).view(entry.shape)


def view_of_values(buffer: memoryview, dtype: torch.dtype, offset: int, num_bytes: int) -> Tensor:
    """A flat view."""
    if not num_bytes:  # frombuffer refuses an empty buffer
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns once that it has no read-only tensors
        return torch.frombuffer(buffer, dtype=dtype, count=num_bytes // dtype.itemsize, offset=offset)
