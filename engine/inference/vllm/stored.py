"""Where vLLM's layers store the published tensors: each parameter with the windows in it.

Invariant: a layer whose class is not known here has no parameters, so only the probe covers it. Subclasses are other
classes: some of vLLM's stack further matrices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from engine.inference.vllm.windows import Window, expert_windows, stacked_windows

WITH_ADAPTERS: Final = ".base_layer"  # in a layer's path, if vLLM has wrapped it to add adapters
PLAIN_EXPERTS: Final = (UnquantizedMoeBackend.TRITON, UnquantizedMoeBackend.BATCHED_TRITON)

Shapes = Mapping[str, Sequence[int]]
"""Of the published tensors, by name."""


class Stored(NamedTuple):
    """A parameter, or the matrix of one expert in it."""

    layer: Any
    parameter: str
    windows: tuple[Window, ...]
    expert: int | None = None

    def values(self) -> Tensor | None:
        """None: this format has another parameter."""
        values: Tensor | None = getattr(self.layer, self.parameter, None)
        return values if values is None or self.expert is None else values[self.expert]


def stored_tensors(model: nn.Module, shapes: Shapes) -> Iterator[Stored]:
    """In each parameter only the windows of published tensors."""
    members: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for path, layer in model.named_modules():
        path = path.replace(WITH_ADAPTERS, "")
        if isinstance(layer, RoutedExperts):
            yield from _experts(layer, path.removesuffix(".routed_experts"), shapes)
            continue
        for parameter in layer._parameters:
            parent, _, own = path.rpartition(".")
            fused = f"{path}.{parameter}"
            names = [f"{parent}.{member}.{parameter}" for member in members.get(own, ())]
            names = names if names and all(name in shapes for name in names) else [fused]
            if all(name in shapes for name in names):
                yield Stored(layer, parameter, tuple(_windows(layer, parameter, names, shapes[names[0]])))


def is_packed(layer: Any) -> bool:
    """True if the values cannot be read after the layer is loaded."""
    if isinstance(layer, RoutedExperts):
        return getattr(layer.quant_method, "unquantized_backend", PLAIN_EXPERTS[0]) not in PLAIN_EXPERTS
    weight = layer._parameters.get("weight")
    return weight is not None and not weight.numel()


def packed_heads(model: nn.Module) -> list[Any]:
    """Heads that compute with a packed copy of their weight, which a CPU keeps in addition."""
    return [each for each in model.modules() if isinstance(each, ParallelLMHead) and hasattr(each, "cpu_linear")]


def _windows(layer: Any, parameter: str, names: Sequence[str], shape: Sequence[int]) -> Iterator[Window]:
    kind, name, size = type(layer), names[0], shape[0]
    if kind in (QKVParallelLinear, MergedColumnParallelLinear):
        is_qkv = kind is QKVParallelLinear
        replicas = (1, *[layer.num_kv_head_replicas if is_qkv else 1] * (len(layer.output_sizes) - 1))
        yield from stacked_windows(names, layer.output_sizes, replicas, rank=layer.tp_rank, num_ranks=layer.tp_size)
    elif kind is ColumnParallelLinear:
        size = layer.output_size_per_partition
        yield Window(name, layer.tp_rank * size, size)
    elif kind is RowParallelLinear:
        column = layer.tp_rank * layer.input_size_per_partition if parameter == "weight" else 0
        yield Window(name, 0, size, column=column)  # every worker has the bias
    elif kind in (VocabParallelEmbedding, ParallelLMHead):
        rows = layer.shard_indices
        if rows.num_org_elements:  # otherwise this worker has padding only
            yield Window(name, rows.org_vocab_start_index, rows.num_org_elements)
    elif not isinstance(layer, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
        held = layer._parameters[parameter]
        if not held.numel() or held.shape == tuple(shape):  # packed, or whole
            yield Window(name, 0, size)


def _experts(layer: Any, path: str, shapes: Shapes) -> Iterator[Stored]:
    parallel = layer.moe_config.moe_parallel_config
    places = layer.expert_map_manager.expert_map  # -1 for experts of other workers; None: all are here
    for number, local in enumerate(range(layer.global_num_experts) if places is None else places.tolist()):
        parts = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
        names = [f"{path}.{number}.{part}.weight" for part in parts]
        if local < 0 or any(name not in shapes for name in names):
            continue
        of_w13, of_w2 = expert_windows(
            *names,
            shape=shapes[names[0]],
            half=layer.intermediate_size_per_partition,
            rank=parallel.tp_rank,
            num_ranks=parallel.tp_size,
        )
        yield Stored(layer, "w13_weight", of_w13, local)
        yield Stored(layer, "w2_weight", of_w2, local)
