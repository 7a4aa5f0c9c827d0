"""A teacher's weights and forward passes count in a device's need."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.durations.step import step_work
from engine.fit.known_models import known_shape
from engine.fit.need import GB
from engine.fit.plan import CHUNK_LOGITS_ON_A_CPU, Products, TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.teacher import asking_phases, teacher_bytes
from engine.fit.trainer import trainer_need
from engine.fit.verdict import trainer_misfit
from engine.models.decoder import Decoder
from engine.training.step.scoring import score_tokens
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.measured.one_answer import one_answer
from tests.engine.fit.shapes_of_models import decoder_config, job
from tests.engine.products import in_pairs

NUM_TOKENS = 8_192
SMALL, LARGE = known_shape("Qwen3-0.6B"), known_shape("Qwen3-32B")


def peak_of_asking(shape: ModelShape, plan: TrainerPlan) -> int:
    """Without weights."""
    with FakeTensorMode(), torch.no_grad():
        model = Decoder(decoder_config(shape), torch.float32)
        batch = one_answer(plan.tokens)
        with LiveBytes() as live:
            score_tokens(model, batch, temperature=1.0, compute_dtype=plan.products, train_entropy=False)
        peak: int = live.peak
        return peak


@pytest.mark.parametrize(
    ("vocab_size", "name", "products"),
    in_pairs([1_024, 151_936], ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"], ["float32", "bfloat16"]),
)
def test_teacher_pass_takes_at_most_its_fullest_phase(name: str, products: Products, vocab_size: int) -> None:
    shape = replace(known_shape(name), num_layers=4, vocab_size=vocab_size)
    plan = TrainerPlan(
        pass_tokens=NUM_TOKENS,
        chunk_tokens=max(CHUNK_LOGITS_ON_A_CPU // vocab_size, 1),
        products=products,
        teacher=shape,
    )
    peak = peak_of_asking(shape, plan)
    assert peak / 1.005 <= max(phase.num_bytes for phase in asking_phases(plan)) <= 1.25 * peak


def test_teacher_weights_are_float32_or_as_stored_with_fsdp() -> None:
    plan = TrainerPlan(pass_tokens=NUM_TOKENS, chunk_tokens=2_048, teacher=LARGE)
    alone = trainer_need(SMALL, plan).certain - trainer_need(SMALL, replace(plan, teacher=None)).certain
    assert alone == 4 * LARGE.num_weights + 8 * LARGE.head_dim * LARGE.max_positions, "and its tables of positions"
    divided = replace(plan, num_devices=8, division="fsdp")
    assert teacher_bytes(LARGE, divided) == -(-2 * LARGE.num_weights // 8)
    assert teacher_bytes(LARGE, replace(divided, division="zero3")) == -(-4 * LARGE.num_weights // 8)
    assert teacher_bytes(LARGE, replace(divided, division="zero2")) == 4 * LARGE.num_weights


def test_large_teacher_is_named_in_the_refusal() -> None:
    taught: dict[str, Any] = {"algorithm": {"teacher": {"source": "large"}}, "trainer": {"compute_dtype": "bfloat16"}}
    misfit = trainer_misfit(job(**taught), SMALL, 80 * GB, teacher=LARGE)
    assert misfit is not None and misfit.is_certain
    assert any("the teacher" in line and "32.76 billion" in line for line in misfit.lines)
    assert misfit.changes is not None, "more devices share it"
    assert trainer_misfit(job(trainer=taught["trainer"]), SMALL, 80 * GB) is None


def test_asking_it_is_work_of_a_step() -> None:
    plain = step_work(job(), SMALL).training_flops
    taught = job(algorithm={"teacher": {"source": "large"}})
    assert step_work(taught, SMALL, teacher=LARGE).training_flops > 10 * plain
