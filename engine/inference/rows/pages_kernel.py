"""A triton kernel that reads pages in place, each once for all query heads that share its keys.

    B rows    H query heads    K key/value heads    G = H / K query heads of each    E width of a head    X slots
    S stretches of a row's tokens    L tokens of a tile

    row 0, keys' head 0   ├── stretch ──┤├── stretch ──┤├─ ─┤     a program each: softmax over its own tokens
                                 └───────────┴──────────┘         combined by their sums, a program a query head

Invariants:
- a stretch has a fixed number of tokens, so the order of a row's sums does not depend on the rest of the batch;
- tokens beyond a row's length or before its window are never read;
- sums and partial results are float32.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
# Functions compiled by triton have no Python types.

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from engine.inference.rows.page_parts import STRETCH, parts_of

TILE: Final = 64
PARTS: Final = 16  # stretches that are combined at a time
LEAST_SIDE: Final = 16  # of a matrix unit's operands
NO_WINDOW: Final = 2**30


class PagesInPlace:
    """ReadPages."""

    def __init__(self, blocks_BM: Tensor, lengths_B: Tensor, block_tokens: int) -> None:
        self._blocks_BM, self._lengths_B, self._block_tokens = blocks_BM, lengths_B, block_tokens

    def __call__(self, q_BHE: Tensor, k_XKE: Tensor, v_XKE: Tensor, window: int | None = None) -> Tensor:
        num_rows, num_heads, head_dim = q_BHE.shape
        num_kv_heads = k_XKE.shape[1]
        group, side = num_heads // num_kv_heads, max(triton.next_power_of_2(head_dim), LEAST_SIDE)
        parts_BHSE, sums_BHS, mixed_BHE = parts_of(q_BHE, self._blocks_BM, self._block_tokens)
        num_stretches = parts_BHSE.shape[2]
        seen = NO_WINDOW if window is None else window
        read_stretch[(num_rows, num_kv_heads, num_stretches)](
            q_BHE, k_XKE, v_XKE, self._blocks_BM, self._lengths_B, parts_BHSE, sums_BHS,
            head_dim**-0.5, seen,
            q_BHE.stride(0), q_BHE.stride(1), k_XKE.stride(0), k_XKE.stride(1), self._blocks_BM.stride(0),
            HEADS=num_heads, GROUP=group, WIDTH=head_dim, BLOCK_TOKENS=self._block_tokens, STRETCHES=num_stretches,
            GROUP_SIDE=max(triton.next_power_of_2(group), LEAST_SIDE), WIDTH_SIDE=side,
            STRETCH_TOKENS=STRETCH, TILE_TOKENS=TILE, num_warps=4, num_stages=3,
        )  # fmt: skip
        put_together[(num_rows, num_heads)](
            parts_BHSE, sums_BHS, self._lengths_B, mixed_BHE, seen,
            HEADS=num_heads, WIDTH=head_dim, STRETCHES=num_stretches, WIDTH_SIDE=side,
            STRETCH_TOKENS=STRETCH, AT_A_TIME=PARTS, num_warps=4,
        )  # fmt: skip
        return mixed_BHE


@triton.jit
def read_stretch(
    q, k, v, blocks, lengths, parts, sums,
    scale, seen,
    q_row, q_head, kv_slot, kv_head, blocks_row,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, BLOCK_TOKENS: tl.constexpr, STRETCHES: tl.constexpr,
    GROUP_SIDE: tl.constexpr, WIDTH_SIDE: tl.constexpr,
    STRETCH_TOKENS: tl.constexpr, TILE_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    row, key_head, stretch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    start = tl.maximum(stretch * STRETCH_TOKENS, length - seen)
    end = tl.minimum((stretch + 1) * STRETCH_TOKENS, length)
    if start < end:
        in_group, in_width = tl.arange(0, GROUP_SIDE), tl.arange(0, WIDTH_SIDE)
        heads_G, is_head_G, is_width_E = key_head * GROUP + in_group, in_group < GROUP, in_width < WIDTH
        q_GE = tl.load(
            q + row * q_row + heads_G[:, None] * q_head + in_width[None, :],
            mask=is_head_G[:, None] & is_width_E[None, :],
            other=0.0,
        )
        highest_G = tl.full((GROUP_SIDE,), float("-inf"), dtype=tl.float32)
        sum_G = tl.zeros((GROUP_SIDE,), dtype=tl.float32)
        mixed_GE = tl.zeros((GROUP_SIDE, WIDTH_SIDE), dtype=tl.float32)
        for first in range(start, end, TILE_TOKENS):
            tokens_L = first + tl.arange(0, TILE_TOKENS)
            is_there_L = tokens_L < end
            block_L = tl.load(blocks + row * blocks_row + tokens_L // BLOCK_TOKENS, mask=is_there_L, other=0)
            slot_L = block_L.to(tl.int64) * BLOCK_TOKENS + tokens_L % BLOCK_TOKENS
            at_L = slot_L * kv_slot + key_head * kv_head
            is_read_EL = is_width_E[:, None] & is_there_L[None, :]
            k_EL = tl.load(k + at_L[None, :] + in_width[:, None], mask=is_read_EL, other=0.0)
            scores_GL = tl.dot(q_GE, k_EL, input_precision="ieee") * scale
            scores_GL = tl.where(is_there_L[None, :], scores_GL, float("-inf"))
            higher_G = tl.maximum(highest_G, tl.max(scores_GL, axis=1))
            kept_G = tl.exp(highest_G - higher_G)
            mass_GL = tl.exp(scores_GL - higher_G[:, None])
            is_read_LE = is_there_L[:, None] & is_width_E[None, :]
            v_LE = tl.load(v + at_L[:, None] + in_width[None, :], mask=is_read_LE, other=0.0)
            mixed_GE = mixed_GE * kept_G[:, None] + tl.dot(mass_GL.to(v_LE.dtype), v_LE, input_precision="ieee")
            sum_G = sum_G * kept_G + tl.sum(mass_GL, axis=1)
            highest_G = higher_G
        place_G = (row * HEADS + heads_G) * STRETCHES + stretch
        tl.store(
            parts + place_G.to(tl.int64)[:, None] * WIDTH + in_width[None, :],
            mixed_GE / sum_G[:, None],
            mask=is_head_G[:, None] & is_width_E[None, :],
        )
        tl.store(sums + place_G, highest_G + tl.log(sum_G), mask=is_head_G)


@triton.jit
def put_together(
    parts, sums, lengths, mixed, seen,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, STRETCHES: tl.constexpr, WIDTH_SIDE: tl.constexpr,
    STRETCH_TOKENS: tl.constexpr, AT_A_TIME: tl.constexpr,
) -> None:  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + row)
    first, end = tl.maximum(length - seen, 0) // STRETCH_TOKENS, tl.cdiv(length, STRETCH_TOKENS)
    in_width = tl.arange(0, WIDTH_SIDE)
    is_width_E = in_width < WIDTH
    place = (row * HEADS + head).to(tl.int64)
    highest = tl.full((1,), float("-inf"), dtype=tl.float32)
    sum_1 = tl.zeros((1,), dtype=tl.float32)
    mixed_E = tl.zeros((WIDTH_SIDE,), dtype=tl.float32)
    for begin in range(first, end, AT_A_TIME):
        stretch_S = begin + tl.arange(0, AT_A_TIME)
        is_there_S = stretch_S < end
        sums_S = tl.load(sums + place * STRETCHES + stretch_S, mask=is_there_S, other=float("-inf"))
        parts_SE = tl.load(
            parts + (place * STRETCHES + stretch_S)[:, None] * WIDTH + in_width[None, :],
            mask=is_there_S[:, None] & is_width_E[None, :],
            other=0.0,
        )
        higher = tl.maximum(highest, tl.max(sums_S, axis=0))
        kept, mass_S = tl.exp(highest - higher), tl.exp(sums_S - higher)
        mixed_E = mixed_E * kept + tl.sum(parts_SE * mass_S[:, None], axis=0)
        sum_1 = sum_1 * kept + tl.sum(mass_S, axis=0)
        highest = higher
    tl.store(mixed + place * WIDTH + in_width, (mixed_E / sum_1).to(mixed.dtype.element_ty), mask=is_width_E)
