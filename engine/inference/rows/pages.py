"""Attention of one new token a row to the keys and values in its pages.

    B rows    M blocks of a row's table    L = M · tokens of a block    H query heads    K key/value heads    X slots
    E width of a head

Invariant: a row's result follows from its own pages, not from the number or the length of the other rows.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.page_store import PageStore

ReadPages = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]
"""(q_BHE, k_XKE, v_XKE, window) → mixed_BHE. `window`: visible tokens, the new one included; None: all."""

OpenPages = Callable[[Tensor, Tensor, int], ReadPages]
"""(blocks_BM, lengths_B, tokens of a block), for all layers of a step."""


def pages_for(device: str) -> OpenPages:
    """The kernel that reads pages in place, if available (triton comes with torch's build for CUDA)."""
    if torch.device(device).type == "cuda" and find_spec("triton") is not None:
        from engine.inference.rows.pages_kernel import PagesInPlace

        return PagesInPlace
    return GatheredPages


class GatheredPages:
    """ReadPages: gathers the pages first, as wide as the longest table. Runs wherever torch does."""

    def __init__(self, blocks_BM: Tensor, lengths_B: Tensor, block_tokens: int) -> None:
        within = torch.arange(block_tokens, device=blocks_BM.device)
        slots_BL = (blocks_BM.long().unsqueeze(-1) * block_tokens + within).flatten(-2)
        self._back_BL = lengths_B.unsqueeze(1) - torch.arange(slots_BL.shape[1], device=blocks_BM.device)
        # Hidden tokens are multiplied by 0, so they must be finite: the row's own first token takes their place.
        self._slots_x = torch.where(self._back_BL > 0, slots_BL, slots_BL[:, :1]).flatten()

    def __call__(self, q_BHE: Tensor, k_XKE: Tensor, v_XKE: Tensor, window: int | None = None) -> Tensor:
        visible_BL = self._back_BL > 0 if window is None else (self._back_BL > 0) & (self._back_BL <= window)
        k_BKLE, v_BKLE = (
            stored.index_select(0, self._slots_x).view(len(q_BHE), -1, *stored.shape[1:]).transpose(1, 2)
            for stored in (k_XKE, v_XKE)
        )
        mixed_BH1E = functional.scaled_dot_product_attention(
            q_BHE.unsqueeze(2),
            k_BKLE,
            v_BKLE,
            attn_mask=visible_BL[:, None, None],
            enable_gqa=q_BHE.shape[1] != k_XKE.shape[1],
        )
        return mixed_BH1E.squeeze(2)


class PagedAttention:
    """The attention of one step: writes each row's new keys and values to its page, then reads all its pages."""

    def __init__(self, store: PageStore, blocks_BM: Tensor, positions_B: Tensor, open_pages: OpenPages) -> None:
        self._store, size = store, store.block_tokens
        block_B = blocks_BM.gather(1, (positions_B // size).unsqueeze(1)).squeeze(1)
        self.written_B = block_B.long() * size + positions_B % size
        """The slot of each row's new token."""
        self._read = open_pages(blocks_BM, (positions_B + 1).int(), size)

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        k_XKE, v_XKE = self._store.layer(layer)
        k_XKE.index_copy_(0, self.written_B, k_TKE)
        v_XKE.index_copy_(0, self.written_B, v_TKE)
        return self._read(q_THE, k_XKE, v_XKE, self._store.windows[layer]).flatten(1)
