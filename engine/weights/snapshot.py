"""The way between named tensors and the flat buffer of a weight version.

Invariants:
- packing copies, so training on does not change a version; mapping does not copy, so a replica reads it for nothing;
- bits survive packing and mapping, for every dtype;
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
"""A writable buffer of so many zero bytes."""

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
    """Without hashes, and with `allocate` into its buffer: nothing but the copy keeps the caller waiting."""
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
    """`pack_weights` of a buffer that the caller fills, and of whose tensors it returns the sums."""
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
    """The places of these in a version; they may have a shape and a dtype and nothing else."""
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
    """Its bytes, and those up to where the next may begin."""
    return math.ceil(entry.num_bytes / ALIGNMENT) * ALIGNMENT


def bytes_of(entries: Iterable[TensorEntry]) -> int:
    return sum(map(room_of, entries))


def map_weights(weights: WeightVersion) -> dict[str, Tensor]:
    """Views of the buffer. They must only be read."""
    return {entry.name: _view(weights.buffer, entry) for entry in weights.manifest.tensors}


def _view(buffer: memoryview, entry: TensorEntry) -> Tensor:
    return view_of_values(buffer, DTYPES[entry.dtype], entry.offset, entry.num_bytes).view(entry.shape)


def view_of_values(buffer: memoryview, dtype: torch.dtype, offset: int, num_bytes: int) -> Tensor:
    """Flat."""
    if not num_bytes:  # frombuffer refuses to map nothing
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors and says so once
        return torch.frombuffer(buffer, dtype=dtype, count=num_bytes // dtype.itemsize, offset=offset)
