"""Keys and values in blocks: stored once, read by all sequences that share them, exported when a sequence moves.

    N layers    K key/value heads    E width of a head    X slots = blocks · tokens of a block    n tokens

A token is in slot block · block_tokens + its index in the block, of every layer.

Invariants:
- the block manager decides who holds a block; every block that it has backed has memory;
- `write` restores the bytes from `pages` bit for bit, in any blocks of any engine with the same layout.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.inference.block_manager import BlockManager, BlockTable
from engine.inference.memory import untouched_zeros
from engine.inference.port import KvPages, KvRoom
from engine.inference.scheduler import Copied
from engine.models.decoder import DecoderConfig
from engine.process.progress import working


class PageStore:
    def __init__(self, config: DecoderConfig, blocks: BlockManager, *, device: str, has_scratch: bool = False) -> None:
        """`has_scratch`: adds a block that the manager does not know, which unused rows write to."""
        self._blocks = blocks
        self.windows = config.windows
        """How many tokens back each layer reads."""
        self._num_spare = blocks.block_tokens if has_scratch else 0
        self._device = device
        self._shape_N2KE = (config.num_layers, 2, config.num_kv_heads, config.head_dim)
        self._kv_N2XKE = self._allocate(0, config.dtype)
        self.back()

    @property
    def layout(self) -> str:
        """Pages of an equal layout can be imported unchanged."""
        num_layers, _, kv_heads, head_dim = self._shape_N2KE
        return f"torch/1 layers={num_layers} kv_heads={kv_heads} head_dim={head_dim} dtype={self._kv_N2XKE.dtype}"

    @property
    def dtype(self) -> torch.dtype:
        return self._kv_N2XKE.dtype

    def num_bytes(self, num_tokens: int) -> int:
        return num_tokens * math.prod(self._shape_N2KE) * self._kv_N2XKE.element_size()

    def back(self) -> None:
        """Allocates memory for all blocks that the manager has backed."""
        old, num_before = self._kv_N2XKE, self.num_slots
        num_slots = self._blocks.num_backed * self._blocks.block_tokens
        if num_slots > num_before:
            self._kv_N2XKE = self._allocate(num_slots + self._num_spare, old.dtype)
            self._kv_N2XKE[:, :, :num_before] = old[:, :, :num_before]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        k_XKE, v_XKE = self._kv_N2XKE[index]
        return k_XKE, v_XKE

    @property
    def num_slots(self) -> int:
        """Slots of the manager's blocks; the scratch block comes after them."""
        return max(self._kv_N2XKE.shape[2] - self._num_spare, 0)

    @property
    def num_spare(self) -> int:
        """Slots of the scratch block."""
        return self._num_spare

    @property
    def block_tokens(self) -> int:
        return self._blocks.block_tokens

    def slots(self, table: BlockTable, start: int, end: int) -> list[int]:
        """The slots of tokens start … end - 1."""
        return self.slots_in(table.blocks, start, end)

    def slots_in(self, blocks: Sequence[int], start: int, end: int) -> list[int]:
        size = self._blocks.block_tokens
        return [blocks[at // size] * size + at % size for at in range(start, end)]

    def slot_range(self, table: BlockTable, start: int, end: int) -> npt.NDArray[np.int64]:
        """The same as an array, for contexts of thousands of tokens."""
        size, first = self._blocks.block_tokens, start // self._blocks.block_tokens
        blocks = np.asarray(table.blocks[first : self._blocks.blocks_for(end)], dtype=np.int64)
        slots = (blocks[:, None] * size + np.arange(size)).reshape(-1)
        return slots[start - first * size : end - first * size]

    def on_device(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)

    def gather(self, slots_n: Tensor) -> Tensor:
        return self._kv_N2XKE.index_select(2, slots_n)

    def scatter(self, slots_n: Tensor, k_NnKE: Tensor, v_NnKE: Tensor) -> None:
        self._kv_N2XKE[:, 0].index_copy_(1, slots_n, k_NnKE)
        self._kv_N2XKE[:, 1].index_copy_(1, slots_n, v_NnKE)

    def slots_of(self, copied: Sequence[Copied]) -> tuple[Tensor, Tensor]:
        """The slots to copy from, and the slots to copy to."""
        sources: list[int] = []
        slots: list[int] = []
        for each in copied:
            sources += self.slots(each.source.table, each.start, each.end)
            slots += self.slots(each.live.table, each.start, each.end)
        return self.on_device(sources), self.on_device(slots)

    def copy(self, sources_n: Tensor, slots_n: Tensor) -> None:
        self.scatter(slots_n, *self.gather(sources_n).unbind(1))

    def pages(self, table: BlockTable, num_tokens: int, *, version: int, room: KvRoom) -> KvPages | None:
        """Exports the pages of the first tokens, layer after layer."""
        if not num_tokens:
            return None
        mixed = not table.shareable
        pages = KvPages(layout=self.layout, version=version, num_tokens=num_tokens, data=b"", mixed=mixed)
        memory = room.take(pages, self.num_bytes(num_tokens))
        if memory is None:
            return None
        slots_n = self.on_device(self.slots(table, 0, num_tokens))
        for layer, (kv_2XKE, room_2nKE) in enumerate(zip(self._kv_N2XKE, self._view(memory), strict=True), start=1):
            with working("move"):
                room_2nKE.copy_(kv_2XKE.index_select(1, slots_n))
            room.filled(layer * room_2nKE.nbytes)
        return replace(pages, data=memory)

    def fitting(self, pages: KvPages, sequence_id: str) -> KvPages | None:
        if pages.layout != self.layout:
            return None
        if len(pages.data) != self.num_bytes(pages.num_tokens):
            raise ValueError(f"progress of {sequence_id!r}: pages of {len(pages.data)} bytes are torn")
        return pages

    def write(self, table: BlockTable, data: bytes | memoryview, start: int, end: int) -> None:
        """Writes tokens start … end - 1 of exported pages."""
        slots_n = self.on_device(self.slots(table, start, end))
        for kv_2XKE, came_2nKE in zip(self._kv_N2XKE, self._view(data), strict=True):
            with working("move"):
                kv_2XKE.index_copy_(1, slots_n, came_2nKE[:, start:end].to(self._device))

    def _view(self, data: bytes | memoryview) -> Tensor:
        num_layers, two, kv_heads, head_dim = self._shape_N2KE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns once that it has no read-only tensors
            flat = torch.frombuffer(data, dtype=self._kv_N2XKE.dtype)
        return flat.view(num_layers, two, -1, kv_heads, head_dim)

    def _allocate(self, num_slots: int, dtype: torch.dtype) -> Tensor:
        num_layers, two, kv_heads, head_dim = self._shape_N2KE
        # Zeros: masked values are multiplied by 0, and uninitialized memory may hold a NaN.
        shape = (num_layers, two, num_slots, kv_heads, head_dim)
        return untouched_zeros(shape, dtype=dtype, device=self._device)


def copied(pages: KvPages, room: KvRoom) -> KvPages | None:
    memory = room.take(replace(pages, data=b""), len(pages.data))
    if memory is None:
        return None
    memory[:] = pages.data
    room.filled(len(memory))
    return replace(pages, data=memory)
