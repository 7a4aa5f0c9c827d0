"""Installs new weights through vLLM's public interface, a weight-transfer engine: each worker maps the bytes at a given
path, and its own loaders take its shard.

    engine: version, its manifest, a path ──▶ every worker: map ─▶ copy layer by layer in place ─▶ unmap

Invariants:
- a worker in another process receives plain values only, and bytes are copied only into layers;
- the packed weights of CPU kernels are packed again. vLLM itself forgets two of these, and computes with the old ones
  while it reports success: those of a head that is tied to the embedding, and those of experts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from engine.inference.vllm.held_parts import PartReader
from engine.inference.vllm.worker_progress import report_every_layer
from engine.process.progress import report_progress
from engine.weights.low_rank import Base
from engine.weights.open_file import map_path
from engine.weights.port import WeightManifest, WeightVersion
from engine.weights.snapshot import DTYPES, map_weights
from engine.weights.sums import sums_of

BACKEND: Final = "laminar"


@dataclass(kw_only=True)
class NewWeights(WeightTransferUpdateInfo):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    manifest: WeightManifest
    memory: str | memoryview
    """For a worker in another process, the path of memory to map."""
    folder: Path
    """The base model's, to which an adapter is added."""
    shapes: dict[str, tuple[int, ...]]
    """Of all tensors in the folder."""

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Of the whole tensors."""
        if self.manifest.low_rank is None:
            return {entry.name: DTYPES[entry.dtype] for entry in self.manifest.tensors}
        return dict.fromkeys(self.shapes, Base(self.folder).dtype)


class MappedWeights(WeightTransferEngine):  # type: ignore[misc]
    init_info_cls = WeightTransferInitInfo
    update_info_cls = NewWeights

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self.merged: dict[str, int] = {}
        """Sums of the whole tensors that an adapter's install has made."""
        if device.type == "cpu":
            report_every_layer(model)
            for layer in model.modules():
                _pack_experts_again(layer)

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """No-op: there is no process group to join."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: NewWeights) -> None:
        self.model.load_weights(self._tensors(update_info))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            for head, embedding in _tied_heads(self.model):
                head.cpu_linear = embedding.cpu_linear

    def shutdown(self) -> None:
        """No-op: it holds no resources."""

    def reader(self, new: NewWeights) -> PartReader | None:
        """None: the version has no sums to compare with."""
        if not new.manifest.sums:
            return None
        return PartReader(self.model, new.shapes, new.dtypes, version=new.manifest.weights.version)

    def _tensors(self, new: NewWeights) -> Iterator[tuple[str, Tensor]]:
        memory = new.memory
        if isinstance(memory, str):
            memory = map_path(memory, new.manifest.num_bytes)
        weights = WeightVersion(manifest=new.manifest, buffer=memory)
        self.merged = {}
        if new.manifest.low_rank is None:
            return _signed(map_weights(weights))
        whole = Base(new.folder).whole(weights, tuple(new.shapes), device=str(self.device))
        return self._summed(whole) if new.manifest.sums else whole

    def _summed(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            (self.merged[name],) = sums_of([tensor])
            yield name, tensor


def _signed(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Reports progress once per tensor: vLLM copies each into its layer before it takes the next."""
    for named in tensors.items():
        report_progress()
        yield named


def _tied_heads(model: nn.Module) -> list[tuple[Any, Any]]:
    """Heads with their tied embeddings: a reload packs the embedding only, although the head shares its weights."""
    parts: list[Any] = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    embeddings = {id(part.weight): part for part in parts if not isinstance(part, ParallelLMHead)}
    heads = [part for part in parts if isinstance(part, ParallelLMHead) and id(part.weight) in embeddings]
    return [(head, embeddings[id(head.weight)]) for head in heads]


def _pack_experts_again(layer: nn.Module) -> None:
    """Packs experts at every reload: vLLM itself packs them the first time, and later overwrites them unpacked."""
    method: Any = getattr(layer, "quant_method", None)
    if getattr(method, "moe_kernel", None) is None:
        return
    process: Callable[[nn.Module], None] = method.process_weights_after_loading

    @wraps(process)
    def process_and_pack(layer: nn.Module) -> None:
        process(layer)
        method.moe_kernel.fused_experts.process_weights_after_loading(layer)

    method.process_weights_after_loading = process_and_pack
