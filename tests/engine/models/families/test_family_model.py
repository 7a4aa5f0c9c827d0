"""A family's layers over packed tokens compute what transformers computes for one sequence at a time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from engine.models.attention import PackedAttention
from engine.models.decoder import Activations
from engine.models.families.attention import attend_packed
from engine.models.families.family_model import FamilyModel
from engine.models.families.settings import FamilyConfig
from engine.models.families.trained_model import TrainedModel, load_model, load_weights, public_tensors, public_views
from engine.models.loading import load_decoder, read_config
from engine.models.packing import lay_out, pack
from tests.engine.models.families.tiny import BOTH, VARIANTS, save_tiny

SEQUENCES: Final = ([5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 30, 0, 3], list(range(4, 40)), [12, 13])
SHARED: Final = (3, 3, 0, 0)

MakeTiny = Callable[[str], Path]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> MakeTiny:
    folders: dict[str, Path] = {}

    def make(variant: str) -> Path:
        if variant not in folders:
            folders[variant] = save_tiny(tmp_path_factory.mktemp(variant), variant)
        return folders[variant]

    return make


def family_model(folder: Path) -> FamilyModel:
    """The model in transformers' layers, even if the decoder supports the family."""
    model = FamilyModel(FamilyConfig.read(folder), torch.float32, device=torch.device("cpu"))
    model.with_memory(torch.device("cpu"))
    load_weights(model, folder)
    return model


def attention_of(folder: Path) -> nn.Module:
    module = family_model(folder).layers[0].self_attn
    assert isinstance(module, nn.Module)
    return module


def packed_pass(model: TrainedModel) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of all tokens in the order of the sequences; public gradients of a loss over all of them."""
    rectangles = lay_out([len(each) for each in SEQUENCES], max_tokens=60)
    tokens = pack(SEQUENCES, rectangles, "cpu", shareable=SHARED)
    hidden_TD = model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens, model.config.windows))
    logits_TV = torch.nn.functional.linear(model.normed(hidden_TD), model.head_VD)
    rows = torch.cat([logits_TV[list(tokens.places[member])] for member in range(len(SEQUENCES))])
    loss_of(rows).backward()  # type: ignore[no-untyped-call]
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return rows.detach(), public_views(model.config, gradients)


def plain_pass(folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by transformers' eager attention, one sequence after the other."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.get_input_embeddings().padding_idx = None  # the padding id is an ordinary word in these sequences
    rows = torch.cat([model(torch.tensor([each])).logits[0] for each in SEQUENCES])
    loss_of(rows).backward()  # type: ignore[no-untyped-call]
    return rows.detach(), {name: each.grad for name, each in model.named_parameters()}


def loss_of(logits_RV: Tensor) -> Tensor:
    weights_RV = torch.randn(logits_RV.shape, generator=torch.Generator().manual_seed(1))
    return (torch.log_softmax(logits_RV, dim=-1) * weights_RV).sum() / len(logits_RV)


def assert_same(mine: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    """Equal within rounding, which in a gradient is relative to its largest number."""
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=2e-5)
    assert mine[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        assert (mine[1][name] - gradient).abs().max() <= 1e-5 * gradient.abs().max(), name


@pytest.mark.long_except(
    "qwen2-windows-recomputed",
    "qwen3-kept",
    "qwen3-recomputed",
    "qwen3-windows-kept",
    "qwen3-windows-recomputed",
    "qwen3-windows-offloaded",
)
@pytest.mark.parametrize("activations", ["kept", "recomputed", "offloaded"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_sequences_match_transformers_one_by_one(
    make_tiny: MakeTiny, variant: str, activations: Activations
) -> None:
    model = family_model(make_tiny(variant))
    model.hold_activations(activations)
    assert_same(packed_pass(model), plain_pass(make_tiny(variant)))


@pytest.mark.parametrize("family", BOTH)
def test_agrees_with_the_decoder_on_families_that_both_know(make_tiny: MakeTiny, family: str) -> None:
    folder = make_tiny(family)
    assert_same(packed_pass(family_model(folder)), packed_pass(load_decoder(folder, device="cpu")))


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if "windows" in variant])
def test_a_window_changes_what_is_computed(make_tiny: MakeTiny, variant: str) -> None:
    """Otherwise the comparison above would not test windows."""
    model = family_model(make_tiny(variant))
    rectangles = lay_out([len(each) for each in SEQUENCES], max_tokens=60)
    tokens = pack(SEQUENCES, rectangles, "cpu")
    seen = model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens, model.config.windows))
    everything = model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens))
    assert (seen - everything).abs().max() > 1e-2


@pytest.mark.parametrize("variant", VARIANTS)
def test_public_tensors_are_those_that_transformers_saves(make_tiny: MakeTiny, variant: str) -> None:
    folder = make_tiny(variant)
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        saved = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    mine = public_tensors(load_model(folder, device="cpu"))
    assert mine.keys() == saved.keys()
    assert all(torch.equal(mine[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_decoder_is_taken_where_it_honours_the_configuration(make_tiny: MakeTiny, variant: str) -> None:
    folder = make_tiny(variant)
    if variant in BOTH:
        assert load_model(folder, device="cpu").config == read_config(folder)
    else:
        assert isinstance(load_model(folder, device="cpu"), FamilyModel)
        with pytest.raises(ValueError, match=r"config\.json"):
            read_config(folder)


def test_older_spellings_of_positions_are_read(make_tiny: MakeTiny) -> None:
    words = json.loads((make_tiny("qwen3-yarn") / "config.json").read_text())
    rope = dict(words.pop("rope_parameters"))
    words |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    older = FamilyModel(FamilyConfig.of(words), torch.float32, device=torch.device("cpu")).model.rotary_emb
    newer = family_model(make_tiny("qwen3-yarn")).model.rotary_emb
    assert torch.equal(older.inv_freq, newer.inv_freq) and older.attention_scaling == newer.attention_scaling != 1.0


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("softcap", 50.0),
        ("s_aux", torch.ones(4)),
        ("dropout", 0.1),
        ("sliding_window", 7),
        ("attention_mask", torch.ones(1, 1, 3, 3)),
        ("is_causal", False),
        ("something_new", 1),
    ],
)
def test_a_keyword_that_is_not_honoured_is_refused_by_name(make_tiny: MakeTiny, keyword: str, value: Any) -> None:
    module = attention_of(make_tiny("mistral"))
    q, kv = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    given = {"attention_mask": None, "attend": lambda *parts: parts[1].flatten(1), keyword: value}
    with pytest.raises(ValueError, match=rf"attention: {keyword} must be"):
        attend_packed(module, q, kv, kv, given.pop("attention_mask"), **given)


@pytest.mark.parametrize("scaling", [None, 8**-0.5, 0.1])
def test_a_scaling_of_its_own_is_honoured(make_tiny: MakeTiny, scaling: float | None) -> None:
    """Granite has one, for example."""
    module = attention_of(make_tiny("mistral"))
    tokens = pack([[1] * 6], lay_out([6], max_tokens=6), "cpu")
    q, k, v = (torch.randn(1, heads, 6, 8, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    mixed, _ = attend_packed(module, q, k, v, None, attend=PackedAttention(tokens), scaling=scaling)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scaling)
    torch.testing.assert_close(mixed, expected.transpose(1, 2))
