"""A mixture computes what transformers' Qwen3-MoE computes, for any choice of experts and grouping of products."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.models import mixture
from engine.models.attention import PackedAttention
from engine.models.decoder import Decoder
from engine.models.loading import hugging_face_views, load_decoder, model_tensors, read_config, save_weights
from engine.models.mixture import (
    Choose,
    Mixture,
    MixtureShape,
    asks_the_host,
    freely,
    grouped_products,
    looped_products,
)
from engine.models.packing import PackedTokens, lay_out, pack
from engine.models.routes import DENSE, TOKENS_AT_ONCE, Replayed, RouteFormat

pytestmark = pytest.mark.usefixtures("one_thread")

SEQUENCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16, 17], [4, 30, 31]]

KINDS: dict[str, dict[str, Any]] = {
    "all": {"norm_topk_prob": True},
    "every second": {"decoder_sparse_step": 2, "num_hidden_layers": 4},
    "but the second": {"mlp_only_layers": [1], "norm_topk_prob": True},
    "one of many": {"num_experts": 300, "num_experts_per_tok": 1, "moe_intermediate_size": 8},
}


def save_mixture(folder: Path, **changes: Any) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings | changes))
    model.eval()
    model.save_pretrained(folder)
    return model


def packed(sequences: list[list[int]]) -> PackedTokens:
    return pack(sequences, lay_out([len(each) for each in sequences], max_tokens=1_000), "cpu")


def logits_of(model: Decoder, tokens: PackedTokens, choose: Choose = freely) -> Tensor:
    return model.logits(model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens), choose))


def noting(choose: Choose) -> tuple[Choose, list[Tensor]]:
    noted: list[Tensor] = []

    def note(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
        noted.append(choose(mixture, logits_TX, k))
        return noted[-1]

    return note, noted


@pytest.mark.long_except("all", "every second", "but the second")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_match_transformers(tmp_path: Path, kind: str) -> None:
    theirs = save_mixture(tmp_path, **KINDS[kind])
    for together in ([SEQUENCES], [[each] for each in SEQUENCES]):
        model = load_decoder(tmp_path, device="cpu")
        theirs.zero_grad()
        for sequences in together:
            tokens = packed(sequences)
            logits_TV = logits_of(model, tokens)
            for index, sequence in enumerate(sequences):
                expected = theirs(torch.tensor([sequence])).logits[0]
                ours = logits_TV[list(tokens.places[index])]
                torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)
                expected.log_softmax(-1)[:, 7].sum().backward()
            logits_TV.log_softmax(-1)[:, 7].sum().backward()  # type: ignore[no-untyped-call]
        ours_by_name = public_gradients(model)
        assert ours_by_name.keys() == load_file(tmp_path / "model.safetensors").keys()
        for name, gradient in public_gradients_of_transformers(theirs).items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(ours_by_name[name], gradient, atol=1e-5 * max(scale, 1.0), rtol=1e-4)


def public_gradients(model: Decoder) -> dict[str, Tensor]:
    return hugging_face_views(model.config, {name: each.grad for name, each in model.named_parameters()})  # type: ignore[misc]


def public_gradients_of_transformers(model: Any) -> dict[str, Tensor]:
    """Gradients by published names; transformers holds all experts in one tensor."""
    gradients: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        prefix, _, kind = name.rpartition(".")
        for expert, gradient in enumerate(parameter.grad if ".experts." in name else ()):
            kinds = {kind: gradient}
            if kind == "gate_up_proj":
                kinds = dict(zip(("gate_proj", "up_proj"), gradient.chunk(2), strict=True))
            gradients |= {f"{prefix}.{expert}.{each}.weight": part for each, part in kinds.items()}
        if ".experts." not in name:
            gradients[name] = parameter.grad
    return gradients


@pytest.mark.long_except("all", "every second", "but the second")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_loads_into_transformers(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    theirs = save_mixture(tmp_path, **KINDS[kind])
    original = load_file(tmp_path / "model.safetensors")
    save_weights(model_tensors(load_decoder(tmp_path, device="cpu")), tmp_path / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == original.keys()
    assert all(torch.equal(stored[name], original[name]) for name in original)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(again[name], values) for name, values in theirs.state_dict().items())


def test_grouped_and_looped_products_have_equal_gradients() -> None:
    """Two of the five experts have no tokens."""
    generator = torch.Generator().manual_seed(0)
    ends_X = torch.tensor([3, 3, 7, 12, 12])
    ends: list[list[Tensor]] = []
    for products in (grouped_products, looped_products):
        generator.manual_seed(0)
        x_SI = torch.randn(12, 16, generator=generator).bfloat16().requires_grad_()
        weights_XOI = torch.randn(5, 24, 16, generator=generator).bfloat16().requires_grad_()
        y_SO = products(x_SI, weights_XOI, ends_X)
        y_SO.backward(torch.randn(y_SO.shape, generator=generator).bfloat16())  # type: ignore[no-untyped-call]
        assert x_SI.grad is not None and weights_XOI.grad is not None
        ends.append([y_SO.detach(), x_SI.grad, weights_XOI.grad])
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, atol=0.07, rtol=0.02)  # bfloat16's rounding of sums of 24 such products


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "expert_width"), [(32, 16), (36, 16), (32, 12)])
def test_asks_the_host_matches_looped_products(
    dtype: torch.dtype, width: int, expert_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looped: list[None] = []

    def noted(*given: Tensor) -> Tensor:
        looped.append(None)
        return looped_products(*given)

    monkeypatch.setattr(mixture, "looped_products", noted)
    shape = MixtureShape(num_experts=4, chosen=2, expert_width=expert_width, renormalised=True, layers=(0,))
    layer = Mixture(shape, width, 0, dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    layer(torch.randn(5, width, dtype=dtype), freely)
    assert asks_the_host(shape, width, dtype) == bool(looped)
    assert not asks_the_host(None, width, dtype)


def test_bfloat16_is_near_float32_with_replayed_choice(tmp_path: Path) -> None:
    save_mixture(tmp_path, norm_topk_prob=True)
    tokens, model = packed(SEQUENCES), load_decoder(tmp_path, device="cpu")
    choose, noted = noting(freely)
    exact_TV = logits_of(model, tokens, choose).log_softmax(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        near_TV = logits_of(model, tokens, Replayed(torch.stack(noted, dim=1))).float().log_softmax(-1)
    assert 0 < (near_TV - exact_TV).abs().max() < 0.5  # of log-probs down to -20
    near_TV.mean().backward()  # type: ignore[no-untyped-call]
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
    assert all(each.grad is not None for each in model.parameters())


def test_bfloat16_chooses_float32_experts_only_when_replayed(tmp_path: Path) -> None:
    """With 64 experts and 1,500 tokens in three layers, some scores differ by less than bfloat16 resolves."""
    save_mixture(tmp_path, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=8, max_position_embeddings=512)
    sequences = [torch.randint(0, 40, (500,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(3)]
    tokens, model = packed(sequences), load_decoder(tmp_path, device="cpu")

    @torch.no_grad()
    def chosen(choose: Choose, *, low: bool) -> Tensor:
        note, noted = noting(choose)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False, enabled=low):
            logits_of(model, tokens, note)
        return torch.stack(noted, dim=1).sort(dim=-1).values

    exact_TWk = chosen(freely, low=False)
    assert not torch.equal(chosen(freely, low=True), exact_TWk)
    assert torch.equal(chosen(Replayed(exact_TWk), low=True), exact_TWk)


def test_replayed_choice_has_gradients_of_original_choice(tmp_path: Path) -> None:
    save_mixture(tmp_path)
    tokens, ends = packed(SEQUENCES), []
    choose, noted = noting(freely)
    for each in (choose, lambda *given: Replayed(torch.stack(noted[:3], dim=1))(*given)):
        model = load_decoder(tmp_path, device="cpu")
        logits_of(model, tokens, each).log_softmax(-1)[:, 7].sum().backward()  # type: ignore[no-untyped-call]
        ends.append(public_gradients(model))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert ends[0]["model.layers.0.mlp.gate.weight"].abs().max() > 0


def test_replayed_routes_override_the_router_where_known(tmp_path: Path) -> None:
    """Tokens with unknown routes keep their output."""
    save_mixture(tmp_path, num_hidden_layers=1)
    tokens, model = packed([[5, 6, 7, 8]]), load_decoder(tmp_path, device="cpu")
    layout = RouteFormat.of(model.config.mixture)
    choose, noted = noting(freely)
    free_TV = logits_of(model, tokens, choose).detach()
    others_TWk = (noted[0].unsqueeze(1) + 1) % layout.num_experts
    others_TWk[1:3] = layout.unknown
    replayed_TV = logits_of(model, tokens, Replayed(others_TWk.to(layout.dtype))).detach()
    changed_T = (replayed_TV - free_TV).abs().amax(dim=-1) > 1e-3
    assert changed_T.tolist() == [True, False, False, True]


@pytest.mark.parametrize("activations", ["recomputed", "offloaded"])
def test_layers_that_are_computed_again_choose_the_same_experts(tmp_path: Path, activations: Any) -> None:
    save_mixture(tmp_path)
    tokens, ends = packed(SEQUENCES), []
    for how in ("kept", activations):
        model = load_decoder(tmp_path, device="cpu")
        model.hold_activations(how)
        logits_of(model, tokens).log_softmax(-1)[:, 7].sum().backward()  # type: ignore[no-untyped-call]
        ends.append(public_gradients(model))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_router_computes_in_float32_whatever_the_rest_does(tmp_path: Path) -> None:
    save_mixture(tmp_path)
    seen: list[torch.dtype] = []

    def look(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
        seen.append(logits_TX.dtype)
        return freely(mixture, logits_TX, k)

    tokens = packed(SEQUENCES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_of(load_decoder(tmp_path, device="cpu"), tokens, look)
    with torch.inference_mode():
        logits_of(load_decoder(tmp_path, device="cpu", dtype=torch.bfloat16), tokens, look)
    assert set(seen) == {torch.float32}


def test_counts_active_parameters(tmp_path: Path) -> None:
    theirs = save_mixture(tmp_path, mlp_only_layers=[1])
    model = load_decoder(tmp_path, device="cpu")
    assert model.num_parameters == sum(each.numel() for each in theirs.parameters())
    assert model.num_parameters - model.num_active_parameters == 2 * (6 - 2) * 3 * 16 * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 0}, "num_experts must be from 1 to 32767 for this decoder, got 0"),
        ({"num_experts": 40_000}, "num_experts must be from 1 to 32767 for this decoder, got 40000"),
        ({"num_experts_per_tok": 7}, "num_experts_per_tok must be from 1 to 6 for this decoder, got 7"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size must be 1 or more for this decoder, got None"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be 1 or more for this decoder, got 0"),
        ({"n_shared_experts": 1}, "n_shared_experts must be 0 for this decoder, got 1"),
    ],
)
def test_a_mixture_that_cannot_be_honoured_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_mixture(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts")  # the name in published folders
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


def test_a_mixture_without_a_layer_is_a_dense_model(tmp_path: Path) -> None:
    save_mixture(tmp_path, mlp_only_layers=[0, 1, 2])
    assert read_config(tmp_path).mixture is None


def route_format(*, num_experts: int, num_mixtures: int = 48, chosen: int = 8) -> RouteFormat:
    """By default with as many numbers a token as Qwen3-30B-A3B has."""
    layers = tuple(range(num_mixtures))
    return RouteFormat.of(
        MixtureShape(num_experts=num_experts, chosen=chosen, expert_width=8, renormalised=True, layers=layers)
    )


@pytest.mark.parametrize(
    ("num_experts", "bits"), [(8, 3), (16, 4), (64, 6), (128, 7), (255, 8), (256, 8), (300, 9), (512, 9), (1_025, 11)]
)
@pytest.mark.parametrize("num_mixtures", [1, 3, 48])
def test_expert_takes_the_fewest_bits_that_number_all(num_experts: int, bits: int, num_mixtures: int) -> None:
    layout = route_format(num_experts=num_experts, num_mixtures=num_mixtures)
    chance_TWX = torch.rand(17, num_mixtures, num_experts, generator=torch.Generator().manual_seed(0))
    routes_TWk = chance_TWX.topk(8, dim=-1).indices
    routes_TWk[0, :, 0], routes_TWk[0, :, 1] = 0, num_experts - 1
    routes_TWk[1], routes_TWk[2, :, :7] = torch.arange(8), num_experts - 1  # the nearest to an unknown route
    routes_TWk[3] = layout.unknown
    data = layout.packed(routes_TWk)
    assert len(data) == 17 * layout.token_bytes and layout.token_bytes == math.ceil(num_mixtures * 8 * bits / 8)
    assert torch.equal(layout.opened(data).long(), routes_TWk)
    pieces = [layout.packed(routes_TWk[:5]), layout.packed(routes_TWk[5:])]
    assert b"".join(pieces) == data, "routes are joined as bytes"


@pytest.mark.parametrize("num_experts", [3, 4, 8, 256])
def test_sole_expert_is_never_read_as_unknown(num_experts: int) -> None:
    layout = route_format(num_experts=num_experts, num_mixtures=2, chosen=1)
    routes_TWk = torch.tensor([[[num_experts - 1]] * 2, [[layout.unknown]] * 2, [[0], [num_experts - 1]]])
    assert torch.equal(layout.opened(layout.packed(routes_TWk)).long(), routes_TWk)


def test_long_sequence_is_packed_as_its_parts_are() -> None:
    layout = route_format(num_experts=8, num_mixtures=1, chosen=2)
    chance_TWX = torch.rand(TOKENS_AT_ONCE + 3, 1, 8, generator=torch.Generator().manual_seed(0))
    routes_TWk = chance_TWX.topk(2, dim=-1).indices
    data = layout.packed(routes_TWk)
    assert data[-3 * layout.token_bytes :] == layout.packed(routes_TWk[-3:])
    assert torch.equal(layout.opened(data).long(), routes_TWk)


@pytest.mark.parametrize("expert", [6, 8, 200, 257, -1])
def test_expert_that_does_not_exist_is_not_packed(expert: int) -> None:
    layout = route_format(num_experts=6, num_mixtures=3, chosen=2)
    with pytest.raises(ValueError, match="experts must be from 0 to 5"):
        layout.packed(torch.full((2, 3, 2), expert))


def test_routes_with_unused_numbers_are_refused() -> None:
    layout, wider = (route_format(num_experts=number, num_mixtures=3, chosen=2) for number in (6, 8))
    data = wider.packed(torch.tensor([[[6, 1]] * 3]))
    with pytest.raises(ValueError, match="experts must be from 0 to 5, got 6"):
        layout.checked(layout.opened(data))
    layout.checked(layout.opened(layout.packed(torch.full((2, 3, 2), layout.unknown))))


def test_no_tokens_have_no_routes() -> None:
    layout = route_format(num_experts=6, num_mixtures=3, chosen=2)
    assert layout.packed(layout.opened(b"")) == b"" and layout.opened(b"").shape == (0, 3, 2)
    assert DENSE.token_bytes == 0 and DENSE.packed(torch.empty(4, 0, 0)) == b""
