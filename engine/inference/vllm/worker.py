"""Our calls to a vLLM worker, beside its own: take new weights in place, hand out pages of its cache.

vLLM mixes the class into its own worker and calls its methods by name.

Invariants:
- what is in flight keeps its KV cache;
- after `install_weights` no kernel holds a copy of the old weights.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from engine.inference.vllm.kv import layout_of, read_pages
from engine.weights.low_rank import Base
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights


class RolloutWorker:
    """A base that vLLM gives its worker; `self` is that worker."""

    def install_weights(self, weights: WeightVersion, folder: Path, names: Sequence[str]) -> None:
        """`names`: of all tensors of the model in the folder, which a version may be added to. vLLM takes all or none:
        it lays layers out anew."""
        worker: Any = self
        if weights.manifest.low_rank is None:
            worker.reload_weights(weights_iterator=iter(map_weights(weights).items()))
        else:
            worker.reload_weights(weights_iterator=Base(folder).whole(weights, names, device=str(worker.device)))
        if worker.device.type == "cpu":
            _renew_prepacked_heads(worker.get_model())

    def kv_layout(self) -> tuple[str, int]:
        return layout_of(_layers(self))

    def read_kv(self, block_ids: Sequence[int], memory: memoryview, filled: Callable[[int], None]) -> None:
        read_pages(_layers(self), block_ids, memory, filled)


def _layers(worker: Any) -> dict[str, Any]:
    layers: dict[str, Any] = worker.vllm_config.compilation_config.static_forward_context
    return layers


def _renew_prepacked_heads(model: nn.Module) -> None:
    """A tied head multiplies by a copy that was packed from the embedding, and a reload does not see that the two are
    one: without this, it answers with the old head and reports success."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding):  # the language-model head is one, too
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
