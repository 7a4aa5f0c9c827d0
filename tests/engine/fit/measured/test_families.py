"""The shapes of families of transformers' own classes: weights counted, activations held against a real layer's."""

import json
from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.activations import layer_bytes
from engine.fit.plan import Products
from engine.fit.shape import COUNTED, ModelShape
from engine.models.attention import PackedAttention
from engine.models.families.family_model import FamilyModel
from engine.models.families.settings import FAMILIES, FamilyConfig
from engine.models.packing import lay_out, pack
from tests.engine.fit.measured.memory_of_a_pass import saved_bytes
from tests.engine.fit.measured.test_activations import FEW, MORE, PRODUCTS, computing_in, plan
from tests.engine.models.families.tiny import VARIANTS, configuration

WIDE: Final[dict[str, Any]] = {
    "vocab_size": 1_024,
    "hidden_size": 4_096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "layer_types": ["full_attention"],
}


def words(variant: str, **changed: Any) -> dict[str, Any]:
    """A config.json."""
    written: dict[str, Any] = json.loads(configuration(variant).to_json_string(use_diff=False))
    return written | {"dtype": "float32"} | {name: value for name, value in changed.items() if name in written}


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_the_weights_that_the_family_has(variant: str) -> None:
    for tied in (False, True):
        raw = words(variant, tie_word_embeddings=tied)
        model = FamilyModel(FamilyConfig.of(raw), torch.float32, device=torch.device("cpu"))
        assert ModelShape.of_config(raw).num_weights == model.num_parameters


def test_missing_setting_counts_as_transformers_default() -> None:
    raw = words("glm4")
    del raw["attention_bias"]
    model = FamilyModel(FamilyConfig.of(raw), torch.float32, device=torch.device("cpu"))
    assert ModelShape.of_config(raw).num_weights == model.num_parameters


def test_every_family_is_counted_and_no_other() -> None:
    assert set(FAMILIES) <= set(COUNTED)
    with pytest.raises(ValueError, match=r"model_type must be one of llama, .*got 'gemma3'"):
        ModelShape.of_config({"model_type": "gemma3"})


def kept_of_a_layer(raw: dict[str, Any], products: Products, num_tokens: int) -> int:
    model = FamilyModel(FamilyConfig.of(raw), torch.float32, device=torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, parameter in list(model.named_parameters()):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, nn.Parameter(torch.empty(parameter.shape)))
        packed = pack([[0] * num_tokens], lay_out([num_tokens], max_tokens=num_tokens), "cpu")
        x_1TD = torch.zeros(1, num_tokens, model.config.width, requires_grad=True)
        turned = model.model.rotary_emb(x_1TD, position_ids=packed.positions_T.unsqueeze(0))
        through = partial(model.layers[0], x_1TD, position_embeddings=turned, attend=PackedAttention(packed))

        def forward() -> Tensor:
            with computing_in(products):
                out: Tensor = through()
            return out

        return saved_bytes(forward, but=(*model.parameters(), *turned))


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_keeps_what_the_formula_says(family: str, products: Products) -> None:
    raw = words(family, **WIDE, head_dim=128)
    few, more = kept_of_a_layer(raw, products, FEW), kept_of_a_layer(raw, products, MORE)
    of_a_token = (more - few) / (MORE - FEW)
    counted = layer_bytes(ModelShape.of_config(raw), plan(products), mixture=False)
    assert counted == pytest.approx(of_a_token, rel=0.07)
