"""LoRA: low-rank updates of the decoder's matrices, in peft's layout, without peft's modules.

    qkv = [ q ]   + scale · [ B_q A_q ]        scale = alpha / rank
          [ k ]             [ B_k A_k ]        one pair for each Hugging Face matrix
          [ v ]             [ B_v A_v ]

peft replaces linear modules, but this decoder has fused parameters. While a layer computes, it therefore reads base
plus update under the parameter's name. So the forward pass uses the merged weights, which replicas reproduce bit for
bit from the published A and B. The cost is one product of rank `rank` per matrix and pass; moments, checkpoints and
versions are small.

Invariants:
- A begins random (as in peft) and B zero, so training begins at the base model;
- base weights never change and are never saved: a run resumes on the model folder that it started on;
- only one layer's merged weights exist at a time, and the backward pass merges them again. Keeping them would cost a
  second model, with ZeRO 3 a whole one on every rank. Measured on a CPU, 113 million parameters (0.43 GB), rank 8: a
  pass of 100 tokens takes 0.7 GB in addition to the weights instead of 1.0 to 1.4, and half as long again; one of 700
  takes a twentieth longer;
- A and B are parameters of the layer itself, so that gathering a sharded layer gathers them too, and are looked up by
  name each time: while a layer computes, sharding replaces its parameters by gathered ones;
- names and shapes in the adapter's file are peft's;
- in layers with mixtures, attention is updated; experts and router are not.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from engine.models.decoder import Attend, Decoder, DecoderLayer
from engine.models.families.trained_model import TrainedModel
from engine.models.loading import hugging_face_views
from engine.models.mixture import Choose, freely
from engine.spec.job import TrainerSpec
from engine.training.parts.layout import Place, decoder_places
from engine.weights.low_rank import TARGETS, add_low_rank, fingerprint, names_of
from engine.weights.port import LowRank


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowRankUpdate:
    """The update of one fused matrix: a pair A, B for each block of rows that is one Hugging Face matrix."""

    modules: tuple[str, ...]
    layer: nn.Module
    attribute: str
    scale: float

    @property
    def a(self) -> tuple[nn.Parameter, ...]:
        return self._parameters("a")

    @property
    def b(self) -> tuple[nn.Parameter, ...]:
        return self._parameters("b")

    def apply_to(self, weight: Tensor) -> Tensor:
        return self.sum_of(weight, self.a, self.b)

    def sum_of(self, weight: Tensor, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return add_low_rank(weight, a, b, scale=self.scale)

    def _parameters(self, letter: str) -> tuple[nn.Parameter, ...]:
        names = [_make_name(self.attribute, letter, number) for number in range(len(self.modules))]
        return tuple(self.layer.get_parameter(name) for name in names)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How to rebuild a view of a merged matrix for the backward pass."""

    attribute: str
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class AdaptedLayer(DecoderLayer):
    """A DecoderLayer with updates, which behaves as without them while `is_adapted` is false."""

    updates: dict[str, LowRankUpdate]
    """By parameter name."""
    is_adapted: bool

    def forward(
        self, x_TD: Tensor, cos_T1E: Tensor, sin_T1E: Tensor, attend: Attend, choose: Choose = freely
    ) -> Tensor:
        if not self.is_adapted:
            return super().forward(x_TD, cos_T1E, sin_T1E, attend, choose)
        merged = {attribute: self.merged(attribute) for attribute in self.updates}
        if torch.is_autocast_enabled(device := x_TD.device.type):
            # As autocast would, but here, so that the hooks below recognise the tensors saved for the backward pass.
            dtype = torch.get_autocast_dtype(device)
            merged = {attribute: matrix.to(dtype) for attribute, matrix in merged.items()}
        vars(self).update(merged)  # instance attributes shadow a module's parameters
        # A layer that is recomputed for the backward pass merges its matrices again anyway.
        is_kept = self.activations == "kept"
        try:
            with saved_tensors_hooks(_pack_merged(merged), self._unpack) if is_kept else nullcontext():
                return super().forward(x_TD, cos_T1E, sin_T1E, attend, choose)
        finally:
            for attribute in merged:
                del vars(self)[attribute]

    def merged(self, attribute: str) -> Tensor:
        weight = self._parameters[attribute]
        assert weight is not None
        return self.updates[attribute].apply_to(weight)

    @torch.no_grad()
    def _unpack(self, packed: "Tensor | _Recipe") -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        return self.merged(packed.attribute).to(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)


def _pack_merged(merged: Mapping[str, Tensor]) -> "Callable[[Tensor], Tensor | _Recipe]":
    attributes = {matrix.untyped_storage().data_ptr(): attribute for attribute, matrix in merged.items()}

    def note(saved: Tensor) -> Tensor | _Recipe:
        attribute = attributes.get(saved.untyped_storage().data_ptr())
        if attribute is None:
            return saved
        return _Recipe(attribute, saved.dtype, saved.size(), saved.stride(), int(saved.storage_offset()))

    return note


class Adapter:
    """The adapter of a whole decoder. Modifies the decoder: every matrix in TARGETS reads as base plus update."""

    def __init__(
        self, model: Decoder, *, rank: int, alpha: float, base: Path, device: torch.device | None = None
    ) -> None:
        """`base`: the model's folder. `device`: of A and B, if the model has no memory yet."""
        self._model, self._folder, self._scale = model, base, alpha / rank
        model.requires_grad_(False)
        self._base_names = [name for name, _ in model.named_parameters()]
        places = decoder_places(model.config, self.base)
        self._layers = [_adapt(layer) for layer in model.layers]
        self._updates: dict[str, LowRankUpdate] = {}
        for name, place in places.items():
            modules = [public.removesuffix(".weight") for public, _, _ in place.parts]
            layer, attribute = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            if modules[0].rpartition(".")[2] in TARGETS and isinstance(layer, AdaptedLayer):  # not experts
                self._updates[name] = layer.updates[attribute] = _make_update(
                    layer, attribute, modules, place, rank=rank, scale=self._scale, device=device
                )
        targets = {module.rpartition(".")[2] for update in self._updates.values() for module in update.modules}
        self.config = _make_peft_config(base.name, sorted(targets), rank=rank, alpha=alpha)

    @classmethod
    def from_spec(
        cls, model: TrainedModel, spec: TrainerSpec, *, base: Path, device: torch.device | None = None
    ) -> "Adapter | None":
        if not spec.lora_rank:
            return None
        if not isinstance(model, Decoder):
            raise ValueError(
                f"trainer.lora_rank must be 0 for a model of transformers' own classes, got {spec.lora_rank}: adapters "
                f"need the built-in decoder"
            )
        return cls(model, rank=spec.lora_rank, alpha=spec.lora_alpha, base=base, device=device)

    @property
    def base(self) -> dict[str, nn.Parameter]:
        """The frozen weights, by the decoder's own names."""
        return {name: self._model.get_parameter(name) for name in self._base_names}

    @property
    def names(self) -> list[str]:
        """The names of the adapter's parameters, without access to these: a checkpoint may be written during a pass, in
        which ZeRO 3 would take an access for a use by the pass."""
        return [name for update in self._updates.values() for module in update.modules for name in names_of(module)]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The adapter's parameters by peft's names."""
        named: dict[str, nn.Parameter] = {}
        for update in self._updates.values():
            for module, a, b in zip(update.modules, update.a, update.b, strict=True):
                named |= zip(names_of(module), (a, b), strict=True)
        return named

    @cached_property
    def published_as(self) -> LowRank:
        return LowRank(base=fingerprint(self._folder), scale=self._scale)

    def needed_for(self, name: str) -> list[nn.Parameter]:
        """The parameters that `merged_values` reads for a parameter."""
        update = self._updates.get(name)
        return [self._model.get_parameter(name), *(() if update is None else (*update.a, *update.b))]

    def names_needed_for(self, name: str) -> list[str]:
        """The names in `parameters` of those that `needed_for` returns, except the first."""
        update = self._updates.get(name)
        modules = () if update is None else update.modules
        return [f"base_model.model.{module}.lora_{letter}.weight" for letter in "AB" for module in modules]

    def merged_values(self, name: str) -> Tensor:
        """One of the decoder's parameters as base plus update."""
        return self.merged_of(name, [parameter.detach() for parameter in self.needed_for(name)])

    @torch.no_grad()
    def merged_of(self, name: str, needed: Sequence[Tensor]) -> Tensor:
        """`needed`: the values of the parameters that `needed_for` returns."""
        update, (weight, *pairs) = self._updates.get(name), needed
        num_pairs = len(pairs) // 2
        return weight if update is None else update.sum_of(weight, pairs[:num_pairs], pairs[num_pairs:])

    def merged(self) -> dict[str, Tensor]:
        """All merged weights, by Hugging Face names."""
        return hugging_face_views(self._model.config, {name: self.merged_values(name) for name in self.base})

    @contextmanager
    def base_only(self) -> Iterator[None]:
        """Switches the update off: the base serves as reference model, without a second copy."""
        for layer in self._layers:
            layer.is_adapted = False
        try:
            yield
        finally:
            for layer in self._layers:
                layer.is_adapted = True


def _adapt(layer: nn.Module) -> AdaptedLayer:
    layer.__class__ = AdaptedLayer
    assert isinstance(layer, AdaptedLayer)
    layer.updates, layer.is_adapted = {}, True
    return layer


def _make_update(
    layer: AdaptedLayer,
    attribute: str,
    modules: list[str],
    place: Place,
    *,
    rank: int,
    scale: float,
    device: torch.device | None,
) -> LowRankUpdate:
    device = device or layer.attention_norm_D.device
    shapes = [shape for _, shape, _ in place.parts]
    assert sum(shape[0] for shape in shapes) == place.shape[0], f"{attribute} has rows of no known matrix"
    for number, shape in enumerate(shapes):
        a, b = torch.empty(rank, shape[1], device=device), torch.zeros(shape[0], rank, device=device)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        for letter, values in (("a", a), ("b", b)):
            layer.register_parameter(_make_name(attribute, letter, number), nn.Parameter(values))
    return LowRankUpdate(modules=tuple(modules), layer=layer, attribute=attribute, scale=scale)


def _make_name(attribute: str, letter: str, number: int) -> str:
    return f"{attribute}_{letter}{number}"


def _make_peft_config(base_name: str, targets: list[str], *, rank: int, alpha: float) -> bytes:
    from peft import LoraConfig  # slow to import, and only jobs with an adapter need it

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=targets,
        base_model_name_or_path=base_name,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        stored = json.loads((Path(folder) / "adapter_config.json").read_text())
    stored["target_modules"].sort()  # peft writes a set, whose order differs between processes
    return json.dumps(stored, indent=2, sort_keys=True).encode()
