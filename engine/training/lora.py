"""Low-rank updates of the decoder's matrices, in peft's layout, without peft's modules.

    qkv = [ q ]   + scale · [ B_q A_q ]        scale = alpha / rank
          [ k ]             [ B_k A_k ]        one pair for each Hugging Face matrix
          [ v ]             [ B_v A_v ]

peft replaces linear modules; this decoder has fused parameters instead. A parametrisation of the parameter does the
same without touching the decoder: whoever reads `layer.qkv_QD` reads the sum. So the forward pass is that of the
merged weights, and what is published is what was trained, to the bit. It costs one product of rank `rank` a matrix
and micro-batch, and room for the merged weights while gradients are computed; moments and checkpoints are small.

Invariants:
- A begins random (as peft's do) and B zero, so training begins at the base model;
- base weights never change and are never saved: a run is resumed on the model folder that it was begun on;
- names and shapes in the adapter's file are peft's.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from engine.models.decoder import Decoder
from engine.models.loading import hugging_face_views

TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Rows of a fused matrix that are one matrix to Hugging Face."""

    module: str
    start: int
    num_rows: int


class LowRankUpdate(nn.Module):
    def __init__(self, blocks: list[_Block], weight: Tensor, *, rank: int, alpha: float) -> None:
        super().__init__()
        self.blocks = blocks
        self.enabled = True
        self._scale = alpha / rank
        width = weight.shape[1]
        self.a = nn.ParameterList(torch.empty(rank, width, device=weight.device) for _ in blocks)
        self.b = nn.ParameterList(torch.zeros(block.num_rows, rank, device=weight.device) for block in blocks)
        for a in self.a:
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        if not self.enabled:
            return weight
        with torch.autocast(weight.device.type, enabled=False):  # rounded to bfloat16, small updates would be lost
            update = torch.cat([b @ a for a, b in zip(self.a, self.b, strict=True)])
        return weight + self._scale * update


class Adapter:
    """The update of a whole decoder, which it changes: every matrix in TARGETS reads as base plus update."""

    def __init__(self, model: Decoder, *, rank: int, alpha: float, base_name: str) -> None:
        self._model = model
        self._own_names = [name for name, _ in model.named_parameters()]
        self._updates: dict[str, LowRankUpdate] = {}
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for name, blocks in _blocks_by_parameter(model).items():
            module, attribute = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            update = LowRankUpdate(blocks, getattr(module, attribute), rank=rank, alpha=alpha)
            parametrize.register_parametrization(module, attribute, update)
            self._updates[name] = update
        self.config = _peft_config(base_name, rank=rank, alpha=alpha)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """By peft's names."""
        named: dict[str, nn.Parameter] = {}
        for update in self._updates.values():
            for block, a, b in zip(update.blocks, update.a, update.b, strict=True):
                named[f"base_model.model.{block.module}.lora_A.weight"] = a
                named[f"base_model.model.{block.module}.lora_B.weight"] = b
        return named

    def merged(self) -> dict[str, Tensor]:
        """Base plus update, by Hugging Face's names."""
        with torch.no_grad():
            own = {name: _attribute(self._model, name).detach() for name in self._own_names}
        return hugging_face_views(self._model.config, own)

    @contextmanager
    def base_only(self) -> Iterator[None]:
        """The reference model is the base: no second copy is kept."""
        for update in self._updates.values():
            update.enabled = False
        try:
            yield
        finally:
            for update in self._updates.values():
                update.enabled = True


def _blocks_by_parameter(model: Decoder) -> dict[str, list[_Block]]:
    """Which rows of which parameter each Hugging Face matrix is, read off the views themselves."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    names = {tensor.untyped_storage().data_ptr(): name for name, tensor in own.items()}
    found: dict[str, list[_Block]] = {}
    for hugging_face_name, view in hugging_face_views(model.config, own).items():
        module = hugging_face_name.removesuffix(".weight")
        if hugging_face_name.endswith(".weight") and module.rpartition(".")[2] in TARGETS:
            start = view.storage_offset() // view.shape[1]
            block = _Block(module=module, start=start, num_rows=view.shape[0])
            found.setdefault(names[view.untyped_storage().data_ptr()], []).append(block)
    for name, blocks in found.items():
        blocks.sort(key=lambda block: block.start)
        assert sum(block.num_rows for block in blocks) == own[name].shape[0], f"{name} has rows of no known matrix"
    return found


def _attribute(model: nn.Module, name: str) -> Tensor:
    module, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(module), attribute)
    assert isinstance(tensor, Tensor)
    return tensor


def _peft_config(base_name: str, *, rank: int, alpha: float) -> bytes:
    from peft import LoraConfig  # slow to import, and only jobs with an adapter need it

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        target_modules=list(TARGETS),
        base_model_name_or_path=base_name,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return (Path(folder) / ADAPTER_CONFIG).read_bytes()


def adapter_tensors(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in parameters.items()}
