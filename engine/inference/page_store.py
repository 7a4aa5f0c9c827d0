"""Keys and values in blocks: stored once, read by all that share them, and sent along when a sequence moves.

    N layers    K key/value heads    E width of a head    X slots = blocks · tokens of a block    n tokens

A token lies in slot block · block_tokens + its place in the block, of every layer.

Invariants:
- which block is whose is the block manager's; memory is there for every block that it has backed;
- what `read` gives, `write` puts back bit for bit, in any blocks of any engine of the same layout.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.inference.block_manager import BlockManager, BlockTable
from engine.inference.memory import untouched_zeros
from engine.inference.scheduler import Copied
from engine.models.decoder import DecoderConfig


class PageStore:
    def __init__(self, config: DecoderConfig, blocks: BlockManager, *, device: str) -> None:
        self._blocks = blocks
        self._device = device
        self._within = torch.arange(blocks.block_tokens, device=device)
        self._shape_N2KE = (config.num_layers, 2, config.num_kv_heads, config.head_dim)
        self._kv_N2XKE = self._empty(0, config.dtype)
        self.back()

    @property
    def layout(self) -> str:
        """Pages of an equal layout can be taken in as they are."""
        num_layers, _, kv_heads, head_dim = self._shape_N2KE
        return f"torch/1 layers={num_layers} kv_heads={kv_heads} head_dim={head_dim} dtype={self._kv_N2XKE.dtype}"

    def num_bytes(self, num_tokens: int) -> int:
        return num_tokens * math.prod(self._shape_N2KE) * self._kv_N2XKE.element_size()

    def back(self) -> None:
        """Memory for all blocks that the manager has backed by now."""
        old = self._kv_N2XKE
        num_slots = self._blocks.num_backed * self._blocks.block_tokens
        if num_slots > old.shape[2]:
            self._kv_N2XKE = self._empty(num_slots, old.dtype)
            self._kv_N2XKE[:, :, : old.shape[2]] = old

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        k_XKE, v_XKE = self._kv_N2XKE[index]
        return k_XKE, v_XKE

    @property
    def num_slots(self) -> int:
        return self._kv_N2XKE.shape[2]

    def slots(self, table: BlockTable, start: int, end: int) -> list[int]:
        """Of tokens start … end - 1."""
        return self.slots_in(table.blocks, start, end)

    def slots_in(self, blocks: Sequence[int], start: int, end: int) -> list[int]:
        size = self._blocks.block_tokens
        return [blocks[at // size] * size + at % size for at in range(start, end)]

    def on_device(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.int64, device=self._device)

    def slots_of_blocks(self, blocks: Tensor) -> Tensor:
        """The last dimension counts tokens instead of blocks."""
        return (blocks.unsqueeze(-1) * self._blocks.block_tokens + self._within).flatten(-2)

    def gather(self, slots_n: Tensor) -> Tensor:
        return self._kv_N2XKE.index_select(2, slots_n)

    def scatter(self, slots_n: Tensor, k_NnKE: Tensor, v_NnKE: Tensor) -> None:
        self._kv_N2XKE[:, 0].index_copy_(1, slots_n, k_NnKE)
        self._kv_N2XKE[:, 1].index_copy_(1, slots_n, v_NnKE)

    def slots_of(self, copied: Sequence[Copied]) -> tuple[Tensor, Tensor]:
        """From where, and to where."""
        sources: list[int] = []
        slots: list[int] = []
        for each in copied:
            sources += self.slots(each.source.table, each.start, each.end)
            slots += self.slots(each.live.table, each.start, each.end)
        return self.on_device(sources), self.on_device(slots)

    def copy(self, sources_n: Tensor, slots_n: Tensor) -> None:
        self.scatter(slots_n, *self.gather(sources_n).unbind(1))

    def read(self, table: BlockTable, num_tokens: int) -> memoryview:
        kv_N2nKE = self.gather(self.on_device(self.slots(table, 0, num_tokens)))
        return memoryview(kv_N2nKE.contiguous().view(torch.uint8).flatten().cpu().numpy())  # type: ignore[arg-type]

    def write(self, table: BlockTable, data: bytes | memoryview, start: int, end: int) -> None:
        """Tokens start … end - 1 of what `read` gave."""
        num_layers, two, kv_heads, head_dim = self._shape_N2KE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch has no read-only tensors and says so once
            flat = torch.frombuffer(data, dtype=self._kv_N2XKE.dtype)
        kv_N2nKE = flat.view(num_layers, two, -1, kv_heads, head_dim)[:, :, start:end]
        slots_n = self.on_device(self.slots(table, start, end))
        self.scatter(slots_n, *kv_N2nKE.to(self._device).unbind(1))

    def _empty(self, num_slots: int, dtype: torch.dtype) -> Tensor:
        num_layers, two, kv_heads, head_dim = self._shape_N2KE
        # Zeros, since what is masked is still multiplied by 0, and memory as it comes may hold a NaN.
        shape = (num_layers, two, num_slots, kv_heads, head_dim)
        return untouched_zeros(shape, dtype=dtype, device=self._device)
