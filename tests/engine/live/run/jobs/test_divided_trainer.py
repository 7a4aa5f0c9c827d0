"""A whole job for each way to divide a trainer: a rank is killed, the run continues, other numbers of ranks resume from
its checkpoint, and each computes a step as one process does."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from engine.fit.known_models import KNOWN_CONFIGS
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.make_random import make_random
from engine.sinks.memory import MemorySink
from engine.spec.facts import FactBody, FaultDetected, StepTrained
from engine.spec.job import JobSpec
from engine.training.replay.again import train_again
from engine.training.replay.record import BEGIN, END, read_record
from tests.engine.training.trainer_conformance import SMOOTH_EPS

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.usefixtures("own_ray")]

STEPS, RECORDED, STRUCK_AFTER, SAVED_EVERY = 4, 2, 3, 2
LEARNING_RATE = 1e-3
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "dtype": "float32",
}
MIXTURE = {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FSDP2, Ulysses, layers recomputed, a mixture": (
        {**KNOWN_CONFIGS["Qwen3-30B-A3B"], **SMALL, **MIXTURE},
        {"backend": "torch", "sequence_parallel": 2, "activations": "recomputed"},
    ),
    "ZeRO 3": (
        {**KNOWN_CONFIGS["Qwen3-8B"], **SMALL},
        {"backend": "deepspeed", "zero_stage": 3, "activations": "recomputed"},
    ),
}


class Blow(MemorySink):
    def __init__(self, step: int, strike: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._strike = step, strike

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and body.step == self._step:
            self._step, strike = -1, self._strike
            strike()


def spec_of(model: Path, trainer: dict[str, Any], *, devices: int) -> JobSpec:
    shares = {} if devices > 1 else {"sequence_parallel": 1}
    return JobSpec.model_validate(
        {
            "name": "divided",
            "model": {"source": str(model)},
            "training": {"steps": STEPS, "prompts_per_step": 4, "checkpoint_every": SAVED_EVERY},
            # Random weights earn no reward: a teacher gives a signal for every token.
            "algorithm": {
                "group_size": 4,
                "kl": {"coefficient": 0.01},
                "teacher": {"source": str(model.with_name("teacher"))},
            },
            "optimizer": {"eps": SMOOTH_EPS, "learning_rate": LEARNING_RATE},
            "trainer": {**trainer, **(shares if "sequence_parallel" in trainer else {})},
            "resources": {"trainer_devices": devices},
            "rollout": {"replicas": 1, "max_batch": 16, "max_new_tokens": 24},
            "evaluation": {"prompts": 4},
        }
    )


@pytest.mark.parametrize("way", WAYS)
def test_rank_is_killed_and_one_and_four_ranks_resume(
    way: str, processes_of: Callable[[str], list[Any]], tmp_path: Path
) -> None:
    config, trainer = WAYS[way]
    make_random(tmp_path / "model", config)
    make_random(tmp_path / "teacher", {**config, "num_hidden_layers": 1})

    def kill_a_rank() -> None:
        os.kill(processes_of("TrainerRankActor")[0].pid, signal.SIGKILL)

    sink, checkpoints, recording = Blow(STRUCK_AFTER, kill_a_rank), tmp_path / "checkpoints", tmp_path / "recording"
    job = spec_of(tmp_path / "model", trainer, devices=2)
    plan = AttemptPlan(spec=job, checkpoints=checkpoints, recorded_step=(RECORDED, recording))
    finished = Attempt(plan, sink).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    assert any("trainer" in body.component for body in sink.bodies if isinstance(body, FaultDetected))

    for devices in (1, 4):
        again = spec_of(tmp_path / "model", trainer, devices=devices)
        assert_agrees(recording, again, tmp_path / f"by-{devices}", devices=devices)
        from_here = str(checkpoints / f"step-{SAVED_EVERY:06d}")
        later = MemorySink()
        plan = AttemptPlan(spec=again, checkpoints=tmp_path / f"on-{devices}", resume_from=from_here)
        finished = Attempt(plan, later).run(lambda: None)
        assert finished.outcome == "succeeded", finished.message
        steps = [body for body in later.bodies if isinstance(body, StepTrained)]
        assert [body.step for body in steps] == list(range(SAVED_EVERY + 1, STEPS + 1))
        assert all(body.metrics["train/skipped"] == 0 for body in steps)


def assert_agrees(recording: Path, job: JobSpec, into: Path, *, devices: int) -> None:
    """Trains the recorded step again from the checkpoint before it, by so many devices of the torch trainer."""
    by_torch = job.model_copy(update={"trainer": job.trainer.model_copy(update={"backend": "torch"})})
    record = read_record(recording)
    other = record.model_copy(update={"num_ranks": devices, "spec": by_torch.model_dump(mode="json")})
    train_again(recording, other, into)
    before, expected, actual = (weights_in(folder) for folder in (recording / BEGIN, recording / END, into / END))
    moved = max((expected[name] - before[name]).abs().max().item() for name in expected)
    apart = max((expected[name] - actual[name]).abs().max().item() for name in expected)
    assert moved > LEARNING_RATE / 100, "the recorded step changes no weight"
    assert apart < LEARNING_RATE / 100, f"{apart} apart, where the largest step was {moved}"


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the published model, which is float32 here."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            tensors |= {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
    assert tensors
    return tensors
