"""A run with the accidents of a real one: tools that fail, conversations that outgrow the context, a long interval
between checkpoints. Each costs what it must, and the alarm for log-probs rings only for a planted fault.

The small form trains the demo model. The large form trains an adapter on Qwen3-8B's true widths, with 2 layers and
random weights, on two vLLM workers in bfloat16: 64 prompts × 16 samples, tools of 1 to 3 s.
"""

from pathlib import Path
from typing import Any, Final

import pytest
from torch import Tensor

from engine.fit.known_models import KNOWN_CONFIGS
from engine.live.body.loop import Body
from engine.live.process.links import Links
from engine.live.rollout.actor import RolloutActor
from engine.live.run import wiring
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.make_random import make_random
from engine.models.pieces import copy_tensor
from engine.sinks.memory import MemorySink
from engine.spec.facts import CheckpointSaved, FaultDetected, RunFinished, StepTrained, TrajectoriesSampled
from engine.spec.job import JobSpec
from engine.weights import installing

pytestmark = [pytest.mark.ray, pytest.mark.sandbox, pytest.mark.usefixtures("own_ray")]

PLANTED: Final = "the planted failure of a tool"
ENVIRONMENT: Final = """
import random, time

def prompt(split, ordinal, seed, params):
    terms = [1 if split == "train" else 2, *map(int, str(ordinal))]
    return {"text": " + ".join(map(str, terms)) + " ="}

def respond(prompt, turns):
    draw = random.random()
    if len(turns) >= 3:
        return {"reward": draw, "parts": {"answered": 1.0}}
    time.sleep(TOOL_S[0] + draw * (TOOL_S[1] - TOOL_S[0]))
    if prompt["split"] == "train" and draw < FAILING:
        raise RuntimeError("PLANTED")
    return {"observation": " 1 + 2 =" * (LONG if draw > 1 - OVERFLOWING else 1), "role": "user"}

def conclude(prompt, turns):
    return {"reward": 0.25, "parts": {"answered": 0.0}, "remark": "judged on what exists"}
"""


def environment(*, tool_s: tuple[float, float], failing: float, overflowing: float, long: int) -> dict[str, Any]:
    """`failing`, `overflowing`: shares of the tool's calls. `long`: repetitions that exceed the model's context."""
    code = ENVIRONMENT.replace("TOOL_S", repr(tool_s)).replace("FAILING", str(failing)).replace("PLANTED", PLANTED)
    return {
        "name": "custom",
        "code": code.replace("OVERFLOWING", str(overflowing)).replace("LONG", str(long)),
    }


def small_job(steps: int, *, schedule: str = "laminar") -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "real run",
            "environment": environment(tool_s=(0.0, 0.02), failing=0.04, overflowing=0.04, long=200),
            "training": {
                "steps": steps,
                "prompts_per_step": 4,
                "checkpoint_every": 1_000,
                "checkpoint_minutes": 0.001,
            },
            "algorithm": {"group_size": 8, "groups": {"min_group": 2}},
            "rollout": {"replicas": 1, "max_batch": 32, "max_new_tokens": 24},
            "evaluation": {"every": 0},
            "schedule": {"name": schedule, "max_staleness": 1_000},
        }
    )


def large_job(folder: Path) -> JobSpec:
    make_random(folder / "model", {**KNOWN_CONFIGS["Qwen3-8B"], "num_hidden_layers": 2})
    return JobSpec.model_validate(
        {
            "name": "real run of 8B widths",
            "model": {"source": str(folder / "model")},
            "environment": environment(tool_s=(1.0, 3.0), failing=0.01, overflowing=0.02, long=2_000),
            "training": {"steps": 2, "prompts_per_step": 64, "checkpoint_every": 1_000, "checkpoint_minutes": 0.001},
            "algorithm": {"group_size": 16},
            "rollout": {
                "engine": "vllm",
                "replicas": 1,
                "max_batch": 256,
                "max_new_tokens": 32,
                "kv_tokens": 32_768,
            },
            "resources": {"devices_per_replica": 2},
            "trainer": {"lora_rank": 16, "compute_dtype": "bfloat16", "micro_batch_tokens": 1_024},
            "evaluation": {"every": 0},
            "schedule": {"max_staleness": 1_000},
        }
    )


class HotRolloutActor(RolloutActor):
    """Samples at another temperature than the trainer computes with."""

    def __init__(self, *, spec: JobSpec, links: Links, **arguments: Any) -> None:
        rollout = spec.rollout.model_copy(update={"temperature": 0.6 * spec.rollout.temperature})
        super().__init__(spec=spec.model_copy(update={"rollout": rollout}), links=links, **arguments)


class StaleRolloutActor(RolloutActor):
    """Keeps one tensor of the first version that it installs."""

    def build(self) -> Body:
        copied: list[int] = []

        def copy(target: Tensor, source: Tensor, *, what: str) -> None:
            if copied[:1] != [target.data_ptr()]:
                copy_tensor(target, source, what=what)
            copied.append(target.data_ptr())

        vars(installing)["copy_tensor"] = copy  # in this actor's process alone
        return super().build()


def run(job: JobSpec, folder: Path) -> tuple[MemorySink, RunFinished]:
    sink = MemorySink()
    return sink, Attempt(AttemptPlan(spec=job, checkpoints=folder), sink, list).run(lambda: None)


def assert_accidents_cost_what_they_must(job: JobSpec, sink: MemorySink, finished: RunFinished) -> None:
    assert finished.outcome == "succeeded", finished.message
    steps = [body for body in sink.bodies if isinstance(body, StepTrained)]
    assert [body.step for body in steps] == [*range(1, job.training.steps + 1)]
    counted = [sum(body.metrics.get(f"failures/{what}", 0.0) for body in steps) for what in ("samples", "short_groups")]
    assert counted[0] >= counted[1] > 0, counted

    samples = [each for body in sink.bodies if isinstance(body, TrajectoriesSampled) for each in body.trajectories]
    failed = [sample for sample in samples if sample.outcome == "error"]
    assert failed and all(PLANTED in sample.remark for sample in failed)
    num_failed = finished.ledger["failed"]
    assert num_failed < job.training.steps * job.training.prompts_per_step, "whole groups were lost, not single samples"
    assert finished.ledger == {
        "trained": job.training.steps * job.trajectories_per_step - num_failed,
        "filtered": 0,
        "dropped_stale": 0,
        "failed": num_failed,
        "open": 0,
    }

    cut = [sample for sample in samples if sample.outcome == "cut"]
    assert cut and all(sample.parts == {"answered": 0.0} and sample.reward == 0.25 for sample in cut)
    saved = [body.step for body in sink.bodies if isinstance(body, CheckpointSaved)]
    assert min(saved) < job.training.steps, "no checkpoint by time"


def faults(sink: MemorySink) -> list[str]:
    return [f"{body.component}: {body.message}" for body in sink.bodies if isinstance(body, FaultDetected)]


@pytest.mark.proof
def test_accidents_of_a_real_run_cost_what_they_must(tmp_path: Path) -> None:
    job = small_job(steps=10)
    sink, finished = run(job, tmp_path)
    assert_accidents_cost_what_they_must(job, sink, finished)
    assert faults(sink) == []


@pytest.mark.long
def test_another_sampling_temperature_raises_the_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "RolloutActor", HotRolloutActor)
    sink, finished = run(small_job(steps=3), tmp_path)
    assert finished.outcome == "succeeded", finished.message
    assert any("rollouts and trainer disagree" in fault for fault in faults(sink)), faults(sink)


@pytest.mark.long
def test_a_stale_tensor_is_named_and_the_replica_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "RolloutActor", StaleRolloutActor)
    sink, finished = run(small_job(steps=3, schedule="sync"), tmp_path)
    assert finished.outcome == "succeeded", finished.message
    stale = [fault for fault in faults(sink) if fault.startswith("rollout/0") and "1 of" in fault]
    assert stale and all("tensors have other bits" in fault for fault in stale), faults(sink)


@pytest.mark.soak
@pytest.mark.vllm
@pytest.mark.usefixtures("vllm_python")
def test_accidents_of_a_real_run_at_the_widths_of_8b(tmp_path: Path) -> None:
    job = large_job(tmp_path)
    sink, finished = run(job, tmp_path / "run")
    assert_accidents_cost_what_they_must(job, sink, finished)
    assert faults(sink) == []
