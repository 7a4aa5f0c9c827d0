"""Copies and reads tensors in pieces of bounded size, each of which reports progress.

Invariant: the bytes equal those of a single copy.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from engine.process.progress import working

# Takes seconds on the slowest usable disk, and is large against the overhead per piece.
PIECE_BYTES: Final = 64 * 2**20


def row_pieces(shape: Sequence[int], num_bytes: int) -> Iterator[slice]:
    """Slices of rows with at most PIECE_BYTES, but at least one row. A tensor without rows or bytes is one slice."""
    if len(shape) == 0 or num_bytes <= PIECE_BYTES:
        yield slice(None)
        return
    rows = max(1, shape[0] * PIECE_BYTES // num_bytes)
    for start in range(0, shape[0], rows):
        yield slice(start, min(start + rows, shape[0]))


def copy_tensor(target: Tensor, source: Tensor, *, what: str) -> None:
    """`source` has the shape of `target`."""
    for rows in row_pieces(target.shape, target.nbytes):
        with working(what):
            if rows == slice(None):
                target.copy_(source)
            else:
                target[rows].copy_(source[rows])


def read_pieces(file: Any, name: str, num_bytes: int) -> Iterator[tuple[slice, Tensor]]:
    """Reads a tensor of an open safetensors file. The caller's use of a piece counts as part of its progress step."""
    stored = file.get_slice(name)
    for rows in row_pieces(stored.get_shape(), num_bytes):
        with working("load"):
            yield rows, file.get_tensor(name) if rows == slice(None) else stored[rows]


def read_tensor(file: Any, name: str, num_bytes: int, *, device: str) -> Tensor:
    pieces = [piece.to(device) for _, piece in read_pieces(file, name, num_bytes)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
