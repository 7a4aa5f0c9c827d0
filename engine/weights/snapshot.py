"""The way between named tensors and the flat buffer of a weight version.

Invariants:
- packing copies, so training on does not change a version; mapping does not copy, so a replica reads it for nothing;
- bits survive packing and mapping, for every dtype;
- every tensor starts at a multiple of ALIGNMENT, and gaps are zero, so equal weights have equal hashes.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from engine.policy.lineage import WeightsId
from engine.signs import at_work
from engine.weights.chunks import CHUNK_BYTES, hashed
from engine.weights.port import TensorEntry, WeightManifest, WeightVersion

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
) -> WeightVersion:
    """With `allocate`, into its buffer and without hashes: nothing but the copy keeps the caller waiting."""
    return pack_stream(tensors, tensors.items(), weights=weights, chunk_bytes=chunk_bytes, allocate=allocate)


def pack_stream(
    layout: Mapping[str, Tensor],
    stream: Iterable[tuple[str, Tensor]],
    *,
    weights: WeightsId,
    chunk_bytes: int = CHUNK_BYTES,
    allocate: Allocate | None = None,
) -> WeightVersion:
    """`pack_weights` of tensors that come one by one, in any order. Those of `layout` may have a shape and a dtype and
    nothing else."""
    entries = tuple(_layout(layout))
    num_bytes = sum(_room(entry) for entry in entries)
    buffer = memoryview(bytearray(num_bytes)) if allocate is None else allocate(num_bytes)
    missing = {entry.name: entry for entry in entries}
    for name, tensor in stream:
        entry = missing.pop(name)
        with at_work("copy", num_bytes=entry.num_bytes):
            _view(buffer, entry).copy_(tensor.detach())
    assert not missing, f"tensors of the layout that did not come: {', '.join(sorted(missing)[:5])}"
    manifest = WeightManifest(
        weights=weights,
        num_bytes=num_bytes,
        chunk_bytes=chunk_bytes,
        sha256="",
        chunk_sha256=(),
        tensors=entries,
    )
    if allocate is None:
        manifest = hashed(manifest, buffer, chunk_bytes=chunk_bytes)
    return WeightVersion(manifest=manifest, buffer=buffer.toreadonly())


def _layout(tensors: Mapping[str, Tensor]) -> Iterator[TensorEntry]:
    offset = 0
    for name, tensor in tensors.items():
        entry = TensorEntry(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offset=offset,
            num_bytes=tensor.numel() * tensor.element_size(),
        )
        yield entry
        offset += _room(entry)


def _room(entry: TensorEntry) -> int:
    return math.ceil(entry.num_bytes / ALIGNMENT) * ALIGNMENT


def map_weights(weights: WeightVersion) -> dict[str, Tensor]:
    """Views of the buffer. They must only be read."""
    return {entry.name: _view(weights.buffer, entry) for entry in weights.manifest.tensors}


def _view(buffer: memoryview, entry: TensorEntry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    if not entry.num_bytes:  # frombuffer refuses to map nothing
        return torch.empty(entry.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors and says so once
        flat = torch.frombuffer(buffer, dtype=dtype, count=math.prod(entry.shape), offset=entry.offset)
    return flat.view(entry.shape)
