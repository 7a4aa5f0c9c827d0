"""Jobs with vLLM replicas on a real Ray: they learn, and continue when replicas, or workers of one, are killed.

Every process of a replica imports vLLM for about 12 s of a core, so each job tests as much as it can.
"""

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.fit.known_models import KNOWN_CONFIGS
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.models.make_random import make_random
from engine.spec.facts import Evaluated, FaultDetected, StepTrained
from engine.spec.job import JobSpec
from tests.engine.live.run.jobs.blows import Blows

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.usefixtures("own_ray")]

STEPS, PROMPTS, GROUP = 30, 8, 8
LEAST_GAIN = 0.15
"""Of the evaluation reward, whose standard error over so many prompts is 0.04 before and after."""

TO_END_S = 60.0

ROLLOUT = {"engine": "vllm", "replicas": 2, "max_batch": 64, "max_new_tokens": 60, "kv_tokens": 8_192}
SMALL_MIXTURE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "dtype": "float32",
}
WORKER = "VLLM::Worker"
SHARED_MEMORY = Path("/dev/shm")
ProcessesOf = Callable[[str], list[Any]]


def job(*, steps: int = STEPS, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "vllm",
            "training": {"steps": steps, "prompts_per_step": PROMPTS, "checkpoint_every": steps},
            "algorithm": {"group_size": GROUP},
            "rollout": ROLLOUT,
            "evaluation": {"prompts": 128},
            "schedule": {"max_staleness": 1_000},  # a busy machine delays samples; none is dropped as stale
            **fields,
        }
    )


def shared_memory_of(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if f"{SHARED_MEMORY}/" in line}


def run(job: JobSpec, folder: Path, sink: Blows) -> None:
    finished = Attempt(AttemptPlan(spec=job, checkpoints=folder), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    num_trained = job.training.steps * job.trajectories_per_step
    assert finished.ledger == {"trained": num_trained, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == list(range(1, job.training.steps + 1))


def learned(sink: Blows) -> bool:
    before, after = sink.of(Evaluated)
    gain: float = after.reward_mean - before.reward_mean
    return gain > LEAST_GAIN


@pytest.mark.long
@pytest.mark.usefixtures("vllm_python")
def test_job_learns_on_vllm_despite_killed_replicas(tmp_path: Path, processes_of: ProcessesOf) -> None:
    """The first replica's samples move to the second; when that is killed too, all wait for the replacements."""
    begun: list[Any] = []

    def kill() -> None:
        begun[:] = begun or processes_of("RolloutActor")
        begun.pop().send_signal(signal.SIGKILL)

    sink = Blows({3: kill, 8: kill})
    run(job(), tmp_path, sink)
    faults = sink.of(FaultDetected)
    assert {fault.component for fault in faults} == {"rollout/0", "rollout/1"} and len(faults) == 2, faults
    assert learned(sink)


@pytest.mark.long
@pytest.mark.usefixtures("vllm_python")
def test_two_device_replica_learns_and_ends_with_a_killed_worker(tmp_path: Path, processes_of: ProcessesOf) -> None:
    """Its samples resume on its replacement; neither workers nor their shared memory stay."""
    shared: set[int] = set()

    def kill() -> None:
        workers = processes_of(WORKER)
        assert len(workers) == 2
        shared.update(inode for worker in workers for inode in shared_memory_of(worker.pid))
        workers[1].send_signal(signal.SIGKILL)

    sink = Blows({3: kill})
    dealt: dict[str, Any] = {"resources": {"devices_per_replica": 2}, "rollout": ROLLOUT | {"replicas": 1}}
    run(job(steps=20, **dealt), tmp_path, sink)
    (fault,) = sink.of(FaultDetected)
    assert fault.component == "rollout/0" and " ended, exit code " in fault.message, fault
    assert learned(sink)
    _, staying = psutil.wait_procs(processes_of(WORKER), timeout=TO_END_S)  # they notice the end of their replica
    assert not staying
    assert shared and not shared & {entry.inode() for entry in os.scandir(SHARED_MEMORY)}


def mixture_job(folder: Path, *, steps: int) -> JobSpec:
    """Random weights earn no reward; they learn a higher entropy."""
    make_random(folder / "model", {**KNOWN_CONFIGS["Qwen3-30B-A3B"], **SMALL_MIXTURE})
    mixture: dict[str, Any] = {
        "model": {"source": str(folder / "model")},
        "algorithm": {"group_size": GROUP, "entropy_coefficient": 0.1},
        "optimizer": {"learning_rate": 1e-2},
        "rollout": ROLLOUT | {"replicas": 1, "max_new_tokens": 16},
        "evaluation": {"prompts": 8},
    }
    return job(steps=steps, **mixture)


def assert_sampled_from_the_trainers_weights(sink: Blows) -> None:
    steps = [body.metrics for body in sink.of(StepTrained)]
    gaps = [metrics["train/logprob_gap_max"] for metrics in steps if "train/logprob_gap_max" in metrics]
    assert gaps and max(gaps) < 1e-3, gaps


@pytest.mark.proof
@pytest.mark.usefixtures("vllm_python")
def test_moe_job_samples_from_the_trainers_weights(tmp_path: Path) -> None:
    sink = Blows({})
    run(mixture_job(tmp_path, steps=2), tmp_path / "run", sink)
    assert not sink.of(FaultDetected)
    assert_sampled_from_the_trainers_weights(sink)


@pytest.mark.long
@pytest.mark.usefixtures("vllm_python")
def test_moe_job_learns_past_a_killed_replica(tmp_path: Path, processes_of: ProcessesOf) -> None:
    """Every version is probed, on the killed replica's replacement too."""
    sink = Blows({2: lambda: processes_of("RolloutActor")[0].send_signal(signal.SIGKILL)})
    run(mixture_job(tmp_path, steps=5), tmp_path / "run", sink)
    (fault,) = sink.of(FaultDetected)
    assert fault.component == "rollout/0" and "probe" not in fault.message
    entropies = [body.metrics["train/entropy"] for body in sink.of(StepTrained)]
    decided = [math.log(SMALL_MIXTURE["vocab_size"]) - entropy for entropy in entropies]
    assert 0 <= decided[-1] < 0.7 * decided[0], decided
    assert_sampled_from_the_trainers_weights(sink)


@pytest.mark.long
def test_interpreter_without_vllm_ends_the_job_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINAR_VLLM_PYTHON", sys.executable)
    sink = Blows({})
    finished = Attempt(AttemptPlan(spec=job(), checkpoints=tmp_path), sink, list).run(lambda: None)
    assert (finished.outcome, finished.failure_class) == ("failed", "config")
    assert f"vllm runs in {sys.executable}, which lacks a package" in finished.message
    assert "`make vllm`" in finished.message and not sink.of(FaultDetected)
