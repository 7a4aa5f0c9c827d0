"""A mixture's job on a real Ray: the trainer replays every route, also of samples that outlived their replica."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.fit.known_models import KNOWN_CONFIGS
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.make_random import make_random
from engine.spec.facts import FaultDetected, StepTrained
from engine.spec.job import JobSpec
from tests.engine.live.run.jobs.blows import Blows

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.usefixtures("own_ray")]

STEPS = 4
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 160,
    "max_position_embeddings": 2_048,
    "dtype": "float32",
}


def spec_of(model: Path) -> JobSpec:
    """Random weights earn no reward, so entropy gives the signal. Samples are long enough to be reported."""
    return JobSpec.model_validate(
        {
            "name": "mixture",
            "model": {"source": str(model)},
            "training": {"steps": STEPS, "prompts_per_step": 2, "checkpoint_every": STEPS},
            "algorithm": {"group_size": 4, "entropy_coefficient": 0.1},
            "rollout": {"replicas": 2, "max_batch": 8, "max_new_tokens": 1_500},
            "evaluation": {"prompts": 2},
            "schedule": {"max_staleness": 1_000},
        }
    )


@pytest.mark.parametrize(("actor", "component"), [("RolloutActor", "rollout"), ("DataActor", "data")])
def test_only_a_restart_of_data_may_cost_routes(
    actor: str, component: str, tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    make_random(tmp_path / "model", {**KNOWN_CONFIGS["Qwen3-30B-A3B"], **SMALL})
    sink = Blows({1: lambda: processes_of(actor)[0].send_signal(signal.SIGKILL)})
    plan = AttemptPlan(spec=spec_of(tmp_path / "model"), checkpoints=tmp_path / "run")
    finished = Attempt(plan, sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    assert [fault.component.split("/")[0] for fault in sink.of(FaultDetected)] == [component]
    unrouted = [body.metrics["train/unrouted_fraction"] for body in sink.of(StepTrained)]
    assert len(unrouted) == STEPS and unrouted[0] == 0.0
    assert not any(unrouted) or component == "data"
