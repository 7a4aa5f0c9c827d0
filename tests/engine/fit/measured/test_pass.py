"""A pass takes the memory of its fullest phase: forward and backward at true widths, on tensors without memory."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.known_models import known_shape
from engine.fit.plan import CHUNK_LOGITS_ON_A_CPU, Activations, Products, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import HANDED_OVER, trainer_need
from engine.models.decoder import Decoder
from engine.training.step.scoring import score_tokens
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.measured.one_answer import one_answer
from tests.engine.fit.shapes_of_models import decoder_config
from tests.engine.products import in_pairs

NUM_TOKENS = 8_192  # a micro-batch of today's default


def peak_of_a_pass(shape: ModelShape, plan: TrainerPlan) -> int:
    """Without weights and gradients, which exist from the pass before."""
    with FakeTensorMode():
        model = Decoder(decoder_config(shape), torch.float32)
        model.hold_activations(plan.activations)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        batch = one_answer(plan.tokens)
        with LiveBytes() as live:
            scores = score_tokens(model, batch, temperature=1.0, compute_dtype=plan.products, train_entropy=False)
            scores.logprobs_N.sum().backward()  # type: ignore[no-untyped-call]
        peak: int = live.peak
        return peak


@pytest.mark.long_except("1024-Qwen3-0.6B-kept-float32", "1024-Qwen3-0.6B-kept-bfloat16")
@pytest.mark.parametrize(
    ("vocab_size", "name", "activations", "products"),
    in_pairs(
        [1_024, 151_936],
        ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"],
        ["kept", "recomputed"],
        ["float32", "bfloat16"],
    ),
)
def test_pass_takes_at_most_its_fullest_phase(
    name: str, products: Products, vocab_size: int, activations: Activations
) -> None:
    shape = replace(known_shape(name), num_layers=4, vocab_size=vocab_size)
    plan = TrainerPlan(
        pass_tokens=NUM_TOKENS,
        chunk_tokens=max(CHUNK_LOGITS_ON_A_CPU // vocab_size, 1),
        products=products,
        activations=activations,
    )
    phases = [phase.num_bytes for phase in trainer_need(shape, plan).phases if phase.what != HANDED_OVER]
    peak = peak_of_a_pass(shape, plan)
    assert peak / 1.005 <= max(phases) <= 1.25 * peak
