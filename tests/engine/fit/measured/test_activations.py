"""The formulas of activations are what autograd keeps of a real layer."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.activations import layer_bytes, mixture_bytes
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.plan import Products, TrainerPlan
from engine.fit.shape import ModelShape
from engine.models.attention import PackedAttention
from engine.models.decoder import DecoderLayer
from engine.models.mixture import Mixture, freely
from engine.models.operations import rms_norm
from engine.models.packing import lay_out, pack
from tests.engine.fit.measured.memory_of_a_pass import saved_bytes
from tests.engine.fit.shapes_of_models import decoder_config, mixture_shape

PRODUCTS: tuple[Products, ...] = ("float32", "bfloat16")
DENSE = [name for name in KNOWN_CONFIGS if "A3B" not in name]
FEW, MORE = 64, 192


def plan(products: Products, **fields: Any) -> TrainerPlan:
    return replace(TrainerPlan(pass_tokens=MORE, chunk_tokens=MORE, products=products), **fields)


def computing_in(products: Products) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if products == "bfloat16" else nullcontext()


def kept_of_a_layer(shape: ModelShape, products: Products, num_tokens: int) -> int:
    """By one layer, of one sequence of so many tokens."""
    config = decoder_config(shape)
    with FakeTensorMode():
        layer = DecoderLayer(config, 0, torch.float32)
        packed = pack([[0] * num_tokens], lay_out([num_tokens], max_tokens=num_tokens), "cpu")
        x_TD = torch.zeros(num_tokens, shape.width, requires_grad=True)
        cos_T1E = sin_T1E = torch.zeros(num_tokens, 1, shape.head_dim)
        attend = PackedAttention(packed)

        def forward() -> Tensor:
            with computing_in(products):
                out: Tensor = layer(x_TD, cos_T1E, sin_T1E, attend)
            return out

        return saved_bytes(forward, but=(*layer.parameters(), cos_T1E))


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("name", DENSE)
def test_a_layer_keeps_what_the_formula_says(name: str, products: Products) -> None:
    """A token's part is what more tokens keep more: weights, which are there too, take none of it."""
    for shape in (known_shape(name), replace(known_shape(name), qk_norm=False, qkv_bias=True)):
        few, more = kept_of_a_layer(shape, products, FEW), kept_of_a_layer(shape, products, MORE)
        of_a_token = (more - few) / (MORE - FEW)
        assert layer_bytes(shape, plan(products), mixture=False) == pytest.approx(of_a_token, rel=0.05)


def test_a_mixture_keeps_what_the_formula_says() -> None:
    """In bfloat16 as FSDP gathers it: grouped products only."""
    shape, kept = known_shape("Qwen3-30B-A3B"), {}
    mixture = mixture_shape(shape)
    assert mixture is not None
    with FakeTensorMode():
        block = Mixture(mixture, shape.width, 0, torch.bfloat16)
        weight_D = torch.ones(shape.width, dtype=torch.bfloat16, requires_grad=True)
        for num_tokens in (FEW, MORE):
            x_TD = torch.zeros(num_tokens, shape.width, dtype=torch.bfloat16, requires_grad=True)

            def forward(x_TD: Tensor = x_TD) -> Tensor:
                out: Tensor = block(rms_norm(x_TD, weight_D, 1e-6), freely)
                return out

            kept[num_tokens] = saved_bytes(forward, but=tuple(block.parameters()))
    of_a_token = (kept[MORE] - kept[FEW]) / (MORE - FEW)
    assert mixture_bytes(shape, plan("bfloat16", division="fsdp")) == pytest.approx(of_a_token, rel=0.05)
