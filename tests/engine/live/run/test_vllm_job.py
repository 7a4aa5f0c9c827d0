"""A job whose replicas are vLLM, on a real Ray: it learns, and goes on when all are killed, one after the other.

Every replica imports vLLM for about 12 s of a core, so one job shows all of it.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import Evaluated, FactBody, FaultDetected, StepTrained
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.usefixtures("own_ray")]

STEPS, PROMPTS, GROUP = 30, 8, 8
LEAST_GAIN = 0.15
"""Of the held-out reward. Its standard error over so many prompts is 0.04 before and after."""


class Blows(MemorySink):
    """Strikes when a step is reached."""

    def __init__(self, blows: dict[int, Callable[[], None]]) -> None:
        super().__init__()
        self._blows = dict(blows)

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and body.step in self._blows:
            self._blows.pop(body.step)()

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def job(*, steps: int = STEPS, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "vllm",
            "training": {"steps": steps, "prompts_per_step": PROMPTS, "checkpoint_every": steps},
            "algorithm": {"group_size": GROUP},
            "rollout": {"engine": "vllm", "replicas": 2, "max_batch": 64, "max_new_tokens": 60, "kv_tokens": 8_192},
            "evaluation": {"prompts": 128},
            "schedule": {"max_staleness": 1_000},  # whatever a busy machine makes late, nothing is dropped for its age
            **fields,
        }
    )


@pytest.mark.usefixtures("vllm_python")
def test_a_job_on_vllm_learns_and_loses_nothing_to_killed_replicas(
    tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    """The first one's samples move to the other; when that is gone too, all wait for those in their places."""
    begun: list[Any] = []

    def kill() -> None:
        begun[:] = begun or processes_of("RolloutActor")
        begun.pop().send_signal(signal.SIGKILL)

    sink = Blows({3: kill, 8: kill})
    finished = Attempt(AttemptPlan(spec=job(), checkpoints=tmp_path), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    num_trained = STEPS * PROMPTS * GROUP
    assert finished.ledger == {"trained": num_trained, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == list(range(1, STEPS + 1))
    faults = sink.of(FaultDetected)
    assert {fault.component for fault in faults} == {"rollout/0", "rollout/1"} and len(faults) == 2, faults
    before, after = sink.of(Evaluated)
    assert (before.version, after.version) == (0, STEPS)
    assert after.reward_mean > before.reward_mean + LEAST_GAIN


def test_an_interpreter_that_lacks_vllm_ends_the_job_at_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINAR_VLLM_PYTHON", sys.executable)
    sink = Blows({})
    finished = Attempt(AttemptPlan(spec=job(), checkpoints=tmp_path), sink, list).run(lambda: None)
    assert (finished.outcome, finished.failure_class) == ("failed", "config")
    assert f"vllm runs in {sys.executable}, which cannot import" in finished.message
    assert "`make vllm`" in finished.message and not sink.of(FaultDetected)
