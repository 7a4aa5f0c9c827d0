"""The buffers of attention that reads pages in place: one partial result for each stretch of a row's tokens.

B rows    M blocks of a row's table    H query heads    E width of a head    S stretches of a row's tokens
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

STRETCH: Final = 512
"""Tokens that one program reads where pages are read in place: enough to fill a multiprocessor's pipeline, few enough
to share one sequence among many."""


class Parts(NamedTuple):
    """Buffers for the results of the stretches, and for their combination."""

    parts_BHSE: Tensor
    sums_BHS: Tensor
    mixed_BHE: Tensor


def parts_of(q_BHE: Tensor, blocks_BM: Tensor, block_tokens: int) -> Parts:
    shape = (*q_BHE.shape[:2], -(-blocks_BM.shape[1] * block_tokens // STRETCH))
    return Parts(
        parts_BHSE=q_BHE.new_empty((*shape, q_BHE.shape[2]), dtype=torch.float32),
        sums_BHS=q_BHE.new_empty(shape, dtype=torch.float32),
        mixed_BHE=torch.empty_like(q_BHE, memory_format=torch.contiguous_format),
    )
