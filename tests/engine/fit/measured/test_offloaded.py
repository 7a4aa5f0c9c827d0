"""Inputs of layers that wait on the host: what is copied there, and what a pass still takes of its device."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.hosts import offloaded_inputs_bytes
from engine.fit.known_models import known_shape
from engine.fit.plan import CHUNK_LOGITS_ON_A_CPU, Activations, Products, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import HANDED_OVER, trainer_need
from engine.models import attention
from engine.models.decoder import Decoder
from engine.training.step.scoring import score_tokens
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.measured.one_answer import one_answer
from tests.engine.fit.shapes_of_models import decoder_config

NUM_TOKENS, NUM_LAYERS = 8_192, 12
DEVICE = "meta"
"""Which is not the host, and computes nothing."""


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast does not know the fake device."""
    monkeypatch.setattr(attention, "_dtype_of_kernel", lambda q_FHE: q_FHE.dtype)


def few_words(name: str) -> ModelShape:
    return replace(known_shape(name), num_layers=NUM_LAYERS, vocab_size=1_024)


def plan_of(products: Products, activations: Activations = "offloaded") -> TrainerPlan:
    """bfloat16 as FSDP has it: all that goes from layer to layer."""
    plan = TrainerPlan(
        pass_tokens=NUM_TOKENS,
        chunk_tokens=CHUNK_LOGITS_ON_A_CPU // 1_024,
        products=products,
        activations=activations,
    )
    return plan if products == "float32" else replace(plan, num_devices=2, division="fsdp")


def peaks_of_a_pass(shape: ModelShape, plan: TrainerPlan) -> tuple[int, int]:
    """Of device and host, without weights and gradients."""
    with FakeTensorMode(), torch.device(DEVICE):
        model = Decoder(decoder_config(shape), torch.float32 if plan.products == "float32" else torch.bfloat16)
        model.hold_activations(plan.activations)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        batch = one_answer(plan.tokens, device=DEVICE)
        with LiveBytes(on=DEVICE) as device, LiveBytes(on="cpu") as host:
            scores = score_tokens(model, batch, temperature=1.0, compute_dtype="float32", train_entropy=False)
            scores.logprobs_N.sum().backward()  # type: ignore[no-untyped-call]
        return device.peak, host.peak


@pytest.mark.long
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"])
def test_the_host_holds_the_input_of_each_layer_and_nothing_else(name: str, products: Products) -> None:
    shape, plan = few_words(name), plan_of(products)
    _, host = peaks_of_a_pass(shape, plan)
    assert offloaded_inputs_bytes(shape, plan) == plan.num_devices * host > 0
    assert peaks_of_a_pass(shape, replace(plan, activations="recomputed"))[1] == 0


@pytest.mark.long_except("Qwen3-32B")
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"])
def test_the_device_takes_what_is_counted_with_two_of_them(name: str) -> None:
    shape, plan = few_words(name), plan_of("float32")
    device, _ = peaks_of_a_pass(shape, plan)
    phases = [phase.num_bytes for phase in trainer_need(shape, plan).phases if phase.what != HANDED_OVER]
    assert device / 1.005 <= max(phases) <= 1.25 * device, f"{max(phases) / device:.3f} of {device:,}"
