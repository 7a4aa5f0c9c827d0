"""A real evaluation on a real Ray: it returns the job's own number and trains no step."""

from pathlib import Path

import pytest

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.control import ControlRequest
from engine.spec.facts import (
    CheckpointSaved,
    Evaluated,
    FactBody,
    PhaseChanged,
    PromptsAnswered,
    RunFinished,
    StepTrained,
)
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]


def spec(*, steps: int, prompts: int = 24) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "live",
            "training": {"steps": steps, "prompts_per_step": 4},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 1, "max_batch": 24, "max_new_tokens": 40},
            "evaluation": {"prompts": prompts},
        }
    )


@pytest.mark.long
def test_evaluation_of_a_checkpoint_returns_its_jobs_number(tmp_path: Path) -> None:
    training, evaluating = MemorySink(), MemorySink()
    trained = Attempt(AttemptPlan(spec=spec(steps=2), checkpoints=tmp_path / "a"), training).run(lambda: None)
    assert trained.outcome == "succeeded", trained.message
    [saved] = [body for body in training.bodies if isinstance(body, CheckpointSaved)]

    plan = AttemptPlan(spec=spec(steps=0), checkpoints=tmp_path / "b", resume_from=saved.uri)
    finished = Attempt(plan, evaluating).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    expected = [body for body in training.bodies if isinstance(body, Evaluated)][-1]
    [again] = [body for body in evaluating.bodies if isinstance(body, Evaluated)]
    assert again == expected and again.version == 2 and 0 < again.num_prompts <= 24
    assert not any(isinstance(body, StepTrained | CheckpointSaved) for body in evaluating.bodies)
    phases = [body.phase for body in evaluating.bodies if isinstance(body, PhaseChanged)]
    assert phases == ["provisioning", "loading_weights", "evaluating"]
    counts = [body for body in evaluating.bodies if isinstance(body, PromptsAnswered)]
    assert {(body.version, body.num_prompts) for body in counts} == {(2, 24)} and counts[-1].num_answered == 24
    assert [body.num_answered for body in counts] == sorted({body.num_answered for body in counts})
    assert not any(isinstance(body, PromptsAnswered) for body in training.bodies)
    assert set(finished.ledger.values()) == {0}, "samples of the training job do not count"
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())


class PausedWhenEvaluating(MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self._requests: list[ControlRequest] = []

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, PhaseChanged) and body.phase == "evaluating":
            self._requests.append(ControlRequest(id="p1", kind="pause"))

    def requests(self) -> list[ControlRequest]:
        sent, self._requests = self._requests, []
        return sent


@pytest.mark.long
def test_paused_evaluation_releases_its_devices_at_once(tmp_path: Path) -> None:
    sink = PausedWhenEvaluating()
    plan = AttemptPlan(spec=spec(steps=0, prompts=60_000), checkpoints=tmp_path / "c")
    finished = Attempt(plan, sink, sink.requests).run(lambda: None)
    assert (finished.outcome, finished.message) == ("paused", "Paused.")
    assert isinstance(sink.bodies[-1], RunFinished) and not any(isinstance(body, Evaluated) for body in sink.bodies)
