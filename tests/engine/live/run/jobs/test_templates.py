"""Every job template trains on the real engine, with fewer steps."""

from pathlib import Path

import pytest

from backend.jobs.submitting.templates import templates
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import Evaluated, StepTrained
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.usefixtures("own_ray")]


def shorter(spec: JobSpec) -> JobSpec:
    document = spec.model_dump(mode="json")
    document["training"] |= {"steps": min(spec.training.steps, 2), "prompts_per_step": 4}
    document["evaluation"]["prompts"] = 8
    return JobSpec.model_validate(document)


@pytest.mark.parametrize("name", templates())
def test_template_runs_for_two_steps(name: str, tmp_path: Path) -> None:
    spec, sink = shorter(templates()[name]), MemorySink()
    finished = Attempt(AttemptPlan(spec=spec, checkpoints=tmp_path), sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    steps = [body for body in sink.bodies if isinstance(body, StepTrained)]
    assert len(steps) == spec.training.steps and any(isinstance(body, Evaluated) for body in sink.bodies)
    assert finished.ledger["failed"] == 0, finished.ledger
