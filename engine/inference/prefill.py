"""Prefill: chunks of several sequences in one forward, each after the tokens that its sequence has in the cache.

    C chunks    T packed tokens    R rows of a rectangle    W width    L positions of the longest context
    H query heads    K key/value heads    E width of a head    n tokens without padding    c tokens of all contexts

On a GPU that supports it, one call of a variable-length kernel handles all chunks without padding, as in
engine/models/attention.py. Elsewhere chunks of similar length form a rectangle, with a call for each rectangle.

Invariants:
- every layer stores all keys and values before it reads any, so a chunk may read blocks that another chunk of the same
  pass fills;
- padding is neither stored nor attended to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.inference.page_store import PageStore
from engine.inference.scheduler import Chunk
from engine.models.attention import CAUSAL, DTYPES_OF_KERNEL, band, in_rows
from engine.models.packing import Rectangle, lay_out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The context of a rectangle's rows, if some of their tokens are in the cache."""

    slots: Tensor
    """R·L slots, flat."""
    positions_RW1: Tensor
    visible_R1WL: Tensor

    def visible(self, window: int | None) -> Tensor:
        if window is None:
            return self.visible_R1WL
        columns_L = torch.arange(self.visible_R1WL.shape[-1], device=self.visible_R1WL.device)
        return self.visible_R1WL & (columns_L > self.positions_RW1 - window).unsqueeze(1)


def chunk_batch(
    chunks: Sequence[Chunk], store: PageStore, *, max_positions: int, device: str
) -> "PackedChunks | RectangularChunks":
    """The attention of a pass, with its tokens, positions and slots. `real_n`: indices without padding; None: all."""
    if torch.device(device).type == "cuda" and store.dtype in DTYPES_OF_KERNEL:
        return PackedChunks(chunks, store, device=device)
    return RectangularChunks(chunks, store, max_positions=max_positions, device=device)


class PackedChunks:
    """Chunks packed one after the other; their contexts too, if some of the tokens are in the cache."""

    real_n: None = None

    def __init__(self, chunks: Sequence[Chunk], store: PageStore, *, device: str) -> None:
        self._store = store
        lengths, ends = [each.end - each.start for each in chunks], [each.end for each in chunks]
        self._longest, self._longest_context = max(lengths), max(ends)
        self._starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        self._context_starts, self._context_slots_c = self._starts, None
        if lengths != ends:
            self._context_starts = torch.tensor([0, *accumulate(ends)], dtype=torch.int32, device=device)
            contexts = [store.slot_range(each.live.table, 0, each.end) for each in chunks]
            self._context_slots_c = store.on_device(np.concatenate(contexts).tolist())
        ids = [token for each in chunks for token in each.live.tokens[each.start : each.end]]
        positions = [at for each in chunks for at in range(each.start, each.end)]
        slots = [store.slot_range(each.live.table, each.start, each.end) for each in chunks]
        self.ids_T, self.positions_T = torch.tensor(ids, device=device), torch.tensor(positions, device=device)
        self.slots_n = store.on_device(np.concatenate(slots).tolist())

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        stored, window = self._store.layer(layer), self._store.windows[layer]
        for stored_XKE, new_TKE in zip(stored, (k_TKE, v_TKE), strict=True):
            stored_XKE.index_copy_(0, self.slots_n, new_TKE)
        if self._context_slots_c is None:
            k_cKE, v_cKE = k_TKE, v_TKE
        else:
            k_cKE, v_cKE = (stored_XKE.index_select(0, self._context_slots_c) for stored_XKE in stored)
        mixed_THE = varlen_attn(
            q_THE,
            k_cKE,
            v_cKE,
            self._starts,
            self._context_starts,
            self._longest,
            self._longest_context,
            window_size=CAUSAL if window is None else (window - 1, 0),  # a chunk ends where its context does
            enable_gqa=q_THE.shape[1] != k_TKE.shape[1],
        )
        assert isinstance(mixed_THE, Tensor)
        return mixed_THE.flatten(1)


class RectangularChunks:
    def __init__(self, chunks: Sequence[Chunk], store: PageStore, *, max_positions: int, device: str) -> None:
        self._store = store
        lengths = [each.end - each.start for each in chunks]
        begun = [index for index, each in enumerate(chunks) if each.start]
        fresh = [index for index, each in enumerate(chunks) if not each.start]
        widest = max(sum(lengths), 1)
        ids: list[int] = []
        positions: list[int] = []
        real: list[int] = []
        slots: list[int] = []
        self._rectangles: list[tuple[Rectangle, _Context | None]] = []
        for some, has_context in ((fresh, False), (begun, True)):
            for rectangle in lay_out(lengths, max_tokens=widest, only=some):
                for member in rectangle.members:
                    each, padding = chunks[member], rectangle.width - lengths[member]
                    real += range(len(ids), len(ids) + lengths[member])
                    slots += store.slots(each.live.table, each.start, each.end)
                    ids += each.live.tokens[each.start : each.end] + [0] * padding
                    positions += [*range(each.start, each.end), *([max_positions - 1] * padding)]
                context = _look_back(rectangle, chunks, store, device) if has_context else None
                self._rectangles.append((rectangle, context))
        self.ids_T = torch.tensor(ids, device=device)
        self.positions_T = torch.tensor(positions, device=device)
        self.slots_n = store.on_device(slots)
        self.real_n = None if len(real) == len(ids) else torch.tensor(real, device=device)

    def __call__(self, layer: int, q_THE: Tensor, k_TKE: Tensor, v_TKE: Tensor) -> Tensor:
        stored, window = self._store.layer(layer), self._store.windows[layer]
        for stored_XKE, new_TKE in zip(stored, (k_TKE, v_TKE), strict=True):
            new_nKE = new_TKE if self.real_n is None else new_TKE.index_select(0, self.real_n)
            stored_XKE.index_copy_(0, self.slots_n, new_nKE)
        sizes = [rectangle.num_tokens for rectangle, _ in self._rectangles]
        parts = zip(self._rectangles, *(torch.split(part, sizes) for part in (q_THE, k_TKE, v_TKE)), strict=True)
        mixed: list[Tensor] = []
        for (rectangle, context), q_SHE, k_SKE, v_SKE in parts:
            if context is None:
                k_RKLE, v_RKLE = in_rows(k_SKE, rectangle), in_rows(v_SKE, rectangle)
                visible = band(rectangle.width, window, q_SHE.device)
            else:
                k_RKLE, v_RKLE = (
                    stored_XKE.index_select(0, context.slots)
                    .view(len(rectangle.members), -1, *k_SKE.shape[1:])
                    .transpose(1, 2)
                    for stored_XKE in stored
                )
                visible = context.visible(window)
            mixed_RHWE = functional.scaled_dot_product_attention(
                in_rows(q_SHE, rectangle),
                k_RKLE,
                v_RKLE,
                attn_mask=visible,
                is_causal=visible is None,
                enable_gqa=q_THE.shape[1] != k_TKE.shape[1],
            )
            mixed.append(mixed_RHWE.transpose(1, 2).reshape(rectangle.num_tokens, -1))
        return torch.cat(mixed)


def _look_back(rectangle: Rectangle, chunks: Sequence[Chunk], store: PageStore, device: str) -> _Context:
    members = [chunks[member] for member in rectangle.members]
    longest = max(each.end for each in members)
    slots: list[int] = []
    for each in members:
        own = store.slots(each.live.table, 0, each.end)
        slots += own + own[:1] * (longest - each.end)
    starts_R11 = torch.tensor([each.start for each in members], device=device).view(-1, 1, 1)
    columns_W1 = torch.arange(rectangle.width, device=device).unsqueeze(1)
    positions_RW1 = starts_R11 + columns_W1
    visible_RWL = torch.arange(longest, device=device) <= positions_RW1
    return _Context(slots=store.on_device(slots), positions_RW1=positions_RW1, visible_R1WL=visible_RWL.unsqueeze(1))
