"""A job with an adapter and vLLM replicas on a real Ray: it learns, with several versions on each replica, and
continues when one is killed."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.live.weights.segments import FOLDER, PREFIX, sweep
from engine.pipeline.plan import Plan
from engine.spec.facts import Evaluated, FaultDetected, StepTrained
from tests.engine.live.run.jobs.blows import Blows
from tests.engine.live.run.jobs.test_vllm_job import job

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.usefixtures("own_ray", "vllm_python")]

STEPS, PROMPTS, GROUP = 40, 8, 8
LEAST_GAIN = 0.15
"""Of the evaluation reward, whose standard error over so many prompts is 0.04 before and after."""


@pytest.mark.long
def test_adapter_job_learns_on_vllm_despite_a_killed_replica(
    tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    def kill() -> None:
        processes_of("RolloutActor")[0].send_signal(signal.SIGKILL)

    spec = job(steps=STEPS, trainer={"lora_rank": 8}, optimizer={"learning_rate": 5e-4})
    plan = Plan.from_spec(spec)
    assert (plan.weight_slots, plan.schedule.in_flight) == (2, "pin")
    sink = Blows({4: kill})
    finished = Attempt(AttemptPlan(spec=spec, checkpoints=tmp_path), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    num_trained = STEPS * PROMPTS * GROUP
    assert finished.ledger == {"trained": num_trained, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == list(range(1, STEPS + 1))
    faults = sink.of(FaultDetected)
    assert len(faults) == 1 and faults[0].component.startswith("rollout/"), faults
    before, after = sink.of(Evaluated)
    assert (before.version, after.version) == (0, STEPS)
    assert after.reward_mean > before.reward_mean + LEAST_GAIN
    sweep()
    assert not list(FOLDER.glob(f"{PREFIX}*-adapter-*"))
