"""Attention over packed sequences, each of which attends to itself only; see engine/models/packing.py.

    T tokens of all sequences    F places of all rectangles    S = R·W tokens of one rectangle of R rows
    H query heads    K key/value heads    E width of a head    A = H·E

On a GPU in 16 bits, one kernel call computes all sequences from the offsets where each begins (torch's `varlen_attn`,
Flash Attention). Otherwise each rectangle is a separate call.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.operations import take_rows
from engine.models.packing import PackedTokens, Rectangle

CAUSAL: Final = (-1, 0)  # the kernel's window: all earlier tokens, no later ones
DTYPES_OF_KERNEL: Final = (torch.bfloat16, torch.float16)


class PackedAttention:
    """Implements `Attend` over packed tokens."""

    def __init__(self, tokens: PackedTokens, windows: Sequence[int | None] = ()) -> None:
        """`windows`: each layer's window in tokens, the current one included; None or empty: all earlier tokens."""
        self._tokens, self._windows = tokens, windows

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        tokens, window = self._tokens, self._windows[layer] if self._windows else None
        q_FHE, k_FKE, v_FKE = (_gather_rows(part, tokens.spread_F) for part in (q_THE, k_TKE, v_TKE))
        if tokens.starts is not None and (dtype := _dtype_of_kernel(q_FHE)) is not None:
            mixed_FA = _attend_at_once(q_FHE.to(dtype), k_FKE.to(dtype), v_FKE.to(dtype), tokens, window)
        else:
            mixed_FA = _attend_by_rectangle(q_FHE, k_FKE, v_FKE, tokens.rectangles, window)
        return _gather_rows(mixed_FA, tokens.gather_T)


def _dtype_of_kernel(q_FHE: Tensor) -> torch.dtype | None:
    """The dtype of attention's products, or None if the kernel does not support it."""
    device = q_FHE.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q_FHE.dtype
    return dtype if device == "cuda" and dtype in DTYPES_OF_KERNEL else None


def _attend_at_once(q_FHE: Tensor, k_FKE: Tensor, v_FKE: Tensor, tokens: PackedTokens, window: int | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    assert tokens.starts is not None
    longest = max(rectangle.width for rectangle in tokens.rectangles)
    mixed_FHE = varlen_attn(
        q_FHE,
        k_FKE,
        v_FKE,
        tokens.starts,
        tokens.starts,
        longest,
        longest,
        window_size=CAUSAL if window is None else (window - 1, 0),
        enable_gqa=q_FHE.shape[1] != k_FKE.shape[1],
    )
    assert isinstance(mixed_FHE, Tensor)
    return mixed_FHE.flatten(1)


def _attend_by_rectangle(
    q_FHE: Tensor, k_FKE: Tensor, v_FKE: Tensor, rectangles: tuple[Rectangle, ...], window: int | None
) -> Tensor:
    sizes = [rectangle.num_tokens for rectangle in rectangles]
    parts = zip(rectangles, *(torch.split(part, sizes) for part in (q_FHE, k_FKE, v_FKE)), strict=True)
    mixed: list[Tensor] = []
    for rectangle, q_SHE, k_SKE, v_SKE in parts:
        band_WW = band(rectangle.width, window, q_FHE.device)
        mixed_RHWE = functional.scaled_dot_product_attention(
            in_rows(q_SHE, rectangle),
            in_rows(k_SKE, rectangle),
            in_rows(v_SKE, rectangle),
            attn_mask=band_WW,
            is_causal=band_WW is None,
            enable_gqa=q_FHE.shape[1] != k_FKE.shape[1],
        )
        mixed.append(mixed_RHWE.transpose(1, 2).reshape(rectangle.num_tokens, -1))
    return torch.cat(mixed)


def band(width: int, window: int | None, device: torch.device) -> Tensor | None:
    """The mask of a sliding window; None if every row fits into the window."""
    if window is None or window >= width:
        return None
    return torch.ones(width, width, dtype=torch.bool, device=device).tril().triu(1 - window)


def _gather_rows(x: Tensor, index: Tensor | None) -> Tensor:
    return x if index is None else take_rows(x, index)


def in_rows(x_SHE: Tensor, rectangle: Rectangle) -> Tensor:
    """Reshapes the tokens of one rectangle to x_RHWE: rows, heads, columns."""
    num_heads, head_dim = x_SHE.shape[1:]
    return x_SHE.view(len(rectangle.members), rectangle.width, num_heads, head_dim).transpose(1, 2)
