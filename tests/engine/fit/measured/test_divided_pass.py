"""A rank that FSDP divides holds what is counted: rows, gathered layers, reduced gradients, moments, at true widths."""

from dataclasses import replace
from typing import Any

import pytest

from engine.fit.backends import sent_bytes
from engine.fit.known_models import known_shape
from engine.fit.plan import CHUNK_LOGITS_ON_A_CPU, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need
from tests.engine.fit.measured.divided_rank import peak_of_a_rank, sent_by_a_rank
from tests.engine.products import in_pairs

NUM_TOKENS = 8_192


def few_layers(name: str, **changed: Any) -> ModelShape:
    shape = replace(known_shape(name), num_layers=4, **changed)
    return replace(shape, num_mixtures=4) if shape.num_experts else shape


def plan_of(shape: ModelShape, **fields: Any) -> TrainerPlan:
    plan = TrainerPlan(
        pass_tokens=NUM_TOKENS,
        chunk_tokens=max(CHUNK_LOGITS_ON_A_CPU // shape.vocab_size, 1),
        num_devices=8,
        division="fsdp",
        activations="recomputed",
    )
    return replace(plan, **fields)


def assert_counted(shape: ModelShape, **fields: Any) -> None:
    """Never less than there is, and at most a quarter more."""
    plan = plan_of(shape, **fields)
    peak, counted = peak_of_a_rank(shape, plan), trainer_need(shape, plan).counted
    assert peak / 1.005 <= counted <= 1.25 * peak, f"{counted / peak:.3f} of {peak:,}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "activations", "products"),
    in_pairs(["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"], ["kept", "recomputed"], ["float32", "bfloat16"]),
)
def test_a_rank_takes_what_is_counted(name: str, activations: str, products: str) -> None:
    assert_counted(few_layers(name), activations=activations, products=products)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"])
def test_layers_are_counted_where_words_are_few(name: str) -> None:
    assert_counted(few_layers(name, vocab_size=1_024))


@pytest.mark.long
@pytest.mark.parametrize(("activations", "products"), [("kept", "float32"), ("recomputed", "bfloat16")])
@pytest.mark.parametrize("num_devices", [2, 64])
def test_one_of_few_or_many_ranks_does(num_devices: int, activations: str, products: str) -> None:
    assert_counted(few_layers("Qwen3-8B"), num_devices=num_devices, activations=activations, products=products)


@pytest.mark.long
@pytest.mark.parametrize(("activations", "products"), [("kept", "float32"), ("recomputed", "bfloat16")])
def test_one_of_the_ranks_with_a_copy_on_each_host_does(activations: str, products: str) -> None:
    copies = {"num_devices": 32, "devices_per_host": 4}
    assert_counted(few_layers("Qwen3-8B"), activations=activations, products=products, has_reference=True, **copies)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "activations", "products", "beside"),
    [
        ("Qwen3-0.6B", "kept", "float32", {}),
        ("Qwen3-8B", "recomputed", "bfloat16", {}),
        ("Qwen3-8B", "recomputed", "float32", {"num_devices": 64, "has_critic": True}),
        ("Qwen3-0.6B", "recomputed", "bfloat16", {"lora_rank": 16}),
        ("Qwen3-30B-A3B", "recomputed", "bfloat16", {"devices_per_host": 4}),
    ],
)
def test_a_rank_that_sums_once_an_update_does(
    name: str, activations: str, products: str, beside: dict[str, Any]
) -> None:
    assert_counted(few_layers(name), activations=activations, products=products, sums_once=True, **beside)


@pytest.mark.long
@pytest.mark.parametrize("activations", ["kept", "recomputed"])
def test_a_rank_of_a_mixture_does(activations: str) -> None:
    assert_counted(few_layers("Qwen3-30B-A3B"), activations=activations)


@pytest.mark.long
@pytest.mark.parametrize(
    ("activations", "products", "name", "beside"),
    [
        ("kept", "float32", "Qwen3-0.6B", "critic and reference"),
        ("recomputed", "bfloat16", "Qwen3-8B", "critic and reference"),
        ("kept", "float32", "Qwen3-8B", "teacher"),
        ("recomputed", "bfloat16", "Qwen3-0.6B", "teacher"),
    ],
)
def test_a_rank_with_other_models_beside_does(name: str, activations: str, products: str, beside: str) -> None:
    assert_counted(
        few_layers(name),
        activations=activations,
        products=products,
        has_critic="critic" in beside,
        has_reference="reference" in beside,
        teacher=few_layers("Qwen3-32B") if beside == "teacher" else None,
    )


@pytest.mark.long
@pytest.mark.parametrize(("name", "products"), [("Qwen3-0.6B", "bfloat16"), ("Qwen3-8B", "float32")])
def test_a_rank_that_trains_an_adapter_does(name: str, products: str) -> None:
    """Its layers computed again: else it knows its merged matrices by an address, and tensors here have none."""
    assert_counted(few_layers(name), products=products, lora_rank=16, has_reference=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sharers", "kv_heads", "activations"), [(2, 8, "kept"), (2, 8, "recomputed"), (8, 2, "kept"), (8, 2, "recomputed")]
)
def test_a_rank_that_shares_its_sequences_does(sharers: int, kv_heads: int, activations: str) -> None:
    shape = replace(few_layers("Qwen3-0.6B"), num_kv_heads=kv_heads)
    assert_counted(shape, sequence_parallel=sharers, pass_tokens=4 * NUM_TOKENS, activations=activations)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "num_tokens", "teacher"),
    [("Qwen3-0.6B", 256, "Qwen3-32B"), ("Qwen3-8B", 256, None), ("Qwen3-8B", 32_768, None)],
)
def test_short_and_long_passes_do(name: str, num_tokens: int, teacher: str | None) -> None:
    """Of few tokens weights are most of it, of many what they keep."""
    taught = None if teacher is None else few_layers(teacher)
    assert_counted(few_layers(name), pass_tokens=num_tokens, teacher=taught)


@pytest.mark.long
@pytest.mark.parametrize("moments", ["bfloat16", "float8"])
def test_a_rank_whose_moments_are_small_does(moments: str) -> None:
    assert_counted(few_layers("Qwen3-8B"), moments=moments)


@pytest.mark.long_except("fields2")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"products": "float32", "num_devices": 64},
        {"activations": "kept"},
        {"lora_rank": 16},
        {"num_devices": 16, "devices_per_host": 4},
    ],
)
def test_a_rank_sends_what_is_told(fields: dict[str, Any]) -> None:
    shape = few_layers("Qwen3-0.6B")
    told = sent_bytes(shape, plan_of(shape, **fields))
    assert told == pytest.approx(sent_by_a_rank(shape, plan_of(shape, **fields)), rel=0.01)
