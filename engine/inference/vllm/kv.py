"""Exports a sequence's keys and values from one vLLM and imports them into another, as one of its KV connectors.

Pages are whole blocks of every layer, in the order of the sequence. The format of a block is the attention kernel's,
which the layout's name includes. Pages are exported on request, and imported in the step that first schedules the
sequence, before that step's forward.

Invariants:
- pages are used once, and dropped with their request;
- the worker's half is stateless: all data comes with the step's metadata, so engines in one process do not mix;
- pages of several workers are concatenated by rank: each worker reads and writes its part. A worker in another process
  receives only the path of memory that both map.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from vllm import __version__ as vllm_version
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.model_executor.layers.attention import Attention

from engine.inference.port import KvPages
from engine.weights.chunks import hold_copy
from engine.weights.open_file import OpenFile, map_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLoad:
    memory: bytes | memoryview | str
    """For a worker in another process, the path of memory to map."""
    num_bytes: int
    """Size of all workers' pages."""
    first_block: int
    block_ids: tuple[int, ...]


@dataclass
class PageLoads(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    loads: list[PageLoad] = field(default_factory=list)


class PageConnector(KVConnectorBase_V1):  # type: ignore[misc]
    # In the scheduler ----------------------------------------------------------------------------------------------

    def __init__(self, vllm_config: VllmConfig, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_tokens = int(vllm_config.cache_config.block_size)
        self._takes_whole_blocks = bool(vllm_config.aux_output_config.enabled)  # routes are noted block by block
        self._has_processes = int(vllm_config.parallel_config.world_size) > 1
        self._arrived: dict[str, KvPages] = {}
        self._in_transfer: list[OpenFile] = []  # pages of the last step
        self._loading: dict[str, range] = {}  # indices of the blocks to load; those before them were in the cache

    def offer(self, request_id: str, pages: KvPages) -> None:
        self._arrived[request_id] = pages

    def holds_blocks(self, request_id: str) -> bool:
        return any(self._groups(request_id))

    def blocks_of(self, request_id: str, num_tokens: int) -> list[int] | None:
        """The blocks of the first tokens. None if they are not (yet, or any more) in a single group of blocks."""
        groups = self._groups(request_id)
        num_blocks = self.num_blocks(num_tokens)
        return groups[0][:num_blocks] if len(groups) == 1 and len(groups[0]) >= num_blocks else None

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)

    def _groups(self, request_id: str) -> tuple[list[int], ...]:
        assert self._kv_cache_manager is not None
        groups: tuple[list[int], ...] = self._kv_cache_manager.get_block_ids(request_id)
        return groups

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        pages = self._arrived.get(request.request_id)
        if pages is None:
            return 0, False
        return max(0, self._usable(pages, request) - num_computed_tokens), False

    def _usable(self, pages: KvPages, request: Any) -> int:
        num_tokens = min(pages.num_tokens, int(request.num_tokens) - 1)  # the last token has to be decoded
        return num_tokens - num_tokens % self._block_tokens if self._takes_whole_blocks else num_tokens

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            num_tokens = self._usable(self._arrived[request.request_id], request)
            first = (num_tokens - num_external_tokens) // self._block_tokens
            self._loading[request.request_id] = range(first, self.num_blocks(num_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> PageLoads:
        step = PageLoads()
        self._in_transfer = []
        for new in scheduler_output.scheduled_new_reqs:
            pages, blocks = self._arrived.pop(new.req_id, None), self._loading.pop(new.req_id, None)
            if pages is not None and blocks is not None:
                block_ids = tuple(new.block_ids[0][blocks.start : blocks.stop])
                step.loads.append(
                    PageLoad(
                        memory=self._for_workers(pages.data),
                        num_bytes=len(pages.data),
                        first_block=blocks.start,
                        block_ids=block_ids,
                    )
                )
        return step

    def _for_workers(self, data: bytes | memoryview) -> bytes | memoryview | str:
        if not self._has_processes:
            return data
        self._in_transfer.append(hold_copy(data))
        return self._in_transfer[-1].path

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._arrived.pop(request.request_id, None)
        self._loading.pop(request.request_id, None)
        return False, None

    # In the worker -------------------------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PageLoads)
        for load in metadata.loads:
            write_pages(forward_context.no_compile_layers, load)

    def has_connector_metadata(self) -> bool:
        """Each layer checks this before it waits for its pages or saves them, which it need not do."""
        return False

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No-op: loading is complete when `start_load_kv` returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """No-op: pages are exported on request."""

    def wait_for_save(self) -> None:
        """No-op: see `save_kv_layer`."""


def layout_of(layers: dict[str, Any]) -> tuple[str, int]:
    """The layout's name, equal for caches with compatible blocks (vLLM, kernels, shapes, workers); and this worker's
    bytes of a block, for all layers."""
    caches = [(layer.kv_cache, getattr(layer, "isa", "")) for layer in _attention(layers)]
    shapes = {f"{tuple(cache.shape[1:])} {cache.dtype} {cache.device.type} {isa}".strip() for cache, isa in caches}
    num_bytes = sum(cache[0].numel() * cache.element_size() for cache, _ in caches)
    degree = get_tensor_model_parallel_world_size()
    dealt = f", dealt to {degree} workers" if degree > 1 else ""
    return f"vllm {vllm_version}: {len(caches)} layers of {', '.join(sorted(shapes))}{dealt}", num_bytes


def own_part(memory: bytes | memoryview) -> bytes | memoryview:
    """This worker's part of all workers' pages."""
    share, rank = len(memory) // get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    return memory[rank * share : (rank + 1) * share]


def read_pages(
    layers: dict[str, Any], block_ids: Sequence[int], memory: memoryview, filled: Callable[[int], None]
) -> None:
    """Reads layer after layer, and calls `filled` with the number of bytes so far."""
    index, room, at = torch.tensor(block_ids), torch.frombuffer(memory, dtype=torch.uint8), 0
    for layer in _attention(layers):
        blocks = layer.kv_cache[index.to(layer.kv_cache.device)].contiguous().view(torch.uint8).flatten()
        room[at : at + len(blocks)].copy_(blocks)
        at += len(blocks)
        filled(at)


def write_pages(layers: dict[str, Any], load: PageLoad) -> None:
    caches = [layer.kv_cache for layer in _attention(layers)]
    memory = map_path(load.memory, load.num_bytes) if isinstance(load.memory, str) else load.memory
    whole = torch.frombuffer(bytearray(own_part(memory)), dtype=torch.uint8)
    for cache, part in zip(caches, whole.chunk(len(caches)), strict=True):
        blocks = part.view(cache.dtype).view(-1, *cache.shape[1:])[load.first_block :][: len(load.block_ids)]
        cache[torch.tensor(load.block_ids, device=cache.device)] = blocks.to(cache.device)


def _attention(layers: dict[str, Any]) -> Iterator[Any]:
    """The attention layers in the model's order."""
    return (layer for layer in layers.values() if isinstance(layer, Attention))
