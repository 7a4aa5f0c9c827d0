"""Adapters on a CPU: groups the rows of a batch by adapter, with one product for all rows of an adapter.

vLLM's own CPU kernels copy both matrices for every row, and apply the last adapter to rows without one. These functions
replace them, with the same arguments.

    N rows    D columns    R rank    L adapters    O columns of a part of the output

Invariant: a row without an adapter (-1) is unchanged.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from vllm.lora.punica_wrapper import punica_cpu

Rows = Tensor | slice


def take_over() -> None:
    """Replaces vLLM's kernels in this process."""
    punica_cpu.sgmv_shrink, punica_cpu.sgmv_expand_slice = shrink, expand


def shrink(
    x_ND: Tensor, a_L1RD: Tensor, out_NR: Tensor, _: Tensor, lengths: Tensor, adapters: Tensor, *rest: float
) -> None:
    """`lengths`: of consecutive runs of rows, each with one adapter."""
    *_counts, scale = rest
    for adapter, rows in _rows_of(adapters, lengths):
        out_NR[rows] = scale * (x_ND[rows].to(out_NR.dtype) @ a_L1RD[adapter, 0].to(out_NR.dtype).T)


def expand(
    x_NR: Tensor, b_L1OR: Tensor, out_NA: Tensor, _: Tensor, lengths: Tensor, adapters: Tensor, *rest: int
) -> None:
    """Adds to a part of the output."""
    *_counts, first, num, _adds = rest
    out_NO = out_NA[:, first : first + num]
    for adapter, rows in _rows_of(adapters, lengths):
        out_NO[rows] += (x_NR[rows] @ b_L1OR[adapter, 0].to(x_NR.dtype).T).to(out_NO.dtype)


def _rows_of(adapters: Tensor, lengths: Tensor) -> Iterator[tuple[int, Rows]]:
    known = adapters.tolist()
    if len(known) == 1:
        if known[0] >= 0:
            yield known[0], slice(None)
        return
    of_row = torch.repeat_interleave(adapters, lengths)
    for adapter in sorted(set(known)):
        if adapter >= 0:
            yield adapter, (of_row == adapter).nonzero().squeeze(1)
