"""Sums over the bits of tensors: check that a replica holds the values that its trainer published.

    trainer   a sum for each tensor, of the values in its memory, in the version's manifest
    replica   the same sums, of the values in its own memory after the install

An element adds (its bits · odd number of its column, modulo 2^32) · odd number of its row; a sum is modulo 2^64. A
tensor of one dimension is one row.

Invariants:
- one differing element always changes the sum; several, or swapped places, leave it unchanged with probability 2^-32;
- sums of parts add up to that of the whole, cut into flat ranges or into rectangles;
- memory in addition to the tensor is bounded, and a call copies results from a device once, after its last sum.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from engine.process.progress import working
from engine.weights.port import WeightManifest
from engine.weights.probe import OtherWeights

# Elements at a time: on a device some tens of MB of temporaries; on a CPU what its caches hold (measured: 5 × as fast).
DEVICE_PIECE: Final = 2**22
CPU_PIECE: Final = 2**18
BITS: Final = {2: torch.int16, 4: torch.int32}
NAMED_AT_MOST: Final = 3

_MODULUS: Final = 2**64
_GOLDEN: Final = -7_046_029_254_386_353_131  # 2^64 / golden ratio, signed: gives neighbours distant numbers
_MIX: Final = -4_658_895_280_553_007_687  # a multiplier of splitmix64


def sums_of(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """One sum for each tensor, over its bits."""
    return fetched([sum_of(tensor) for tensor in tensors])


@torch.no_grad()
def sum_of(values: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sum, still on its device. `dtype`: the values are rounded to it first, and its bits are compared."""
    if values.dim() < 2:
        return _sum_of_rows(values.reshape(1, -1), 0, 0, dtype or values.dtype)
    return _sum_of_rows(values.flatten(1), 0, 0, dtype or values.dtype)


@torch.no_grad()
def sum_of_range(values: Tensor, start: int, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
    """`values`: a flat range of a tensor of this shape, from element `start` on. `dtype`: as in `sum_of`."""
    width = math.prod(shape[1:]) if len(shape) > 1 else math.prod(shape)
    sums = []
    for first, last in _row_ranges(start, start + len(values), width):
        part, (row, column) = values[first - start : last - start], divmod(first, width)
        sums.append(_sum_of_rows(part.view(-1, min(width, last - first)), row, column, dtype))
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.int64, device=values.device)


@torch.no_grad()
def sum_of_rectangle(values: Tensor, row: int, column: int, *, dtype: torch.dtype) -> Tensor:
    """`values`: a rectangle of a tensor, whose first element is at this row and column. `dtype`: as in `sum_of`."""
    return _sum_of_rows(values if values.dim() == 2 else values.reshape(1, -1), row, column, dtype)


def fetched(sums: Sequence[Tensor]) -> tuple[int, ...]:
    """Copies sums from their device, all at once."""
    return tuple(each % _MODULUS for each in torch.stack(list(sums)).tolist()) if sums else ()


def added(parts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The sums of whole tensors, from those of processes with a part of each tensor (zero for no part)."""
    return tuple(sum(each) % _MODULUS for each in zip(*parts, strict=True))


def published_sums(manifest: WeightManifest) -> dict[str, int]:
    """By tensor; empty if the version was published without sums."""
    if not manifest.sums:
        return {}
    return {entry.name: each for entry, each in zip(manifest.tensors, manifest.sums, strict=True)}


def check_sums(
    manifest: WeightManifest, expected: Mapping[str, int], held: Mapping[str, int | None], *, what: str
) -> None:
    """Raises `OtherWeights`, which names tensors and version. `what`: what was compared, in the plural."""
    differing = [name for name in expected if held[name] != expected[name]]
    if not differing:
        return
    names = ", ".join(differing[:NAMED_AT_MOST]) + (", …" if len(differing) > NAMED_AT_MOST else "")
    raise OtherWeights(
        f"version {manifest.weights}: {what} are not the ones that the trainer published: {len(differing)} of "
        f"{len(expected)} tensors have other bits: {names}. If every replica reports this, choose another "
        f"rollout.engine; if only one host's do, its device or memory is faulty"
    )


def _row_ranges(start: int, stop: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of flat positions, each a part of one row or a number of whole rows."""
    while start < stop:
        if start % width or stop - start < width:
            last = min(stop, (start // width + 1) * width)
        else:
            last = start + (stop - start) // width * width
        yield start, last
        start = last


def _sum_of_rows(values_RC: Tensor, first_row: int, first_column: int, dtype: torch.dtype) -> Tensor:
    num_rows, num_columns = values_RC.shape
    device, sums = values_RC.device, []
    of_rows = _numbers(device, _room(first_row + num_rows))[first_row : first_row + num_rows]
    of_columns = _column_numbers(device, _room(first_column + num_columns))
    piece = CPU_PIECE if device.type == "cpu" else DEVICE_PIECE
    for start in range(0, num_columns, piece):
        stop = min(start + piece, num_columns)
        numbers_C, height = of_columns[first_column + start : first_column + stop], max(1, piece // (stop - start))
        for row in range(0, num_rows, height):
            with working("sum"):
                bits_RC = values_RC[row : row + height, start:stop].to(dtype).view(BITS[dtype.itemsize])
                sums_R = (bits_RC * numbers_C).sum(dim=1, dtype=torch.int64)
                sums.append((sums_R * of_rows[row : row + height]).sum())
    return torch.stack(sums).sum() if sums else torch.zeros((), dtype=torch.int64, device=device)


def _room(count: int) -> int:
    """A power of two, so that the cache holds tables of few lengths."""
    return 1 << max(10, (count - 1).bit_length())


@lru_cache(maxsize=16)
def _numbers(device: torch.device, count: int) -> Tensor:
    """Odd numbers of 64 bits, each determined by its index alone."""
    with torch.inference_mode(False):
        mixed = (torch.arange(1, count + 1, dtype=torch.int64, device=device) * _GOLDEN).bitwise_xor_(
            torch.arange(1, count + 1, dtype=torch.int64, device=device) * _MIX >> 29
        )
        return (mixed * _MIX).bitwise_or_(1)


@lru_cache(maxsize=16)
def _column_numbers(device: torch.device, count: int) -> Tensor:
    """Odd numbers of 32 bits."""
    with torch.inference_mode(False):
        return (_numbers(device, count) >> 32).to(torch.int32).bitwise_or_(1)
