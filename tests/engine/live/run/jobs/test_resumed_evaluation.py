"""The weights that a job starts from are evaluated: version 0 by a later attempt if the first ended before, and the
checkpoint of another job."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.live.environment.actor import EnvironmentActor
from engine.live.environment.turns import Ask
from engine.live.process.interruptions import Interrupted
from engine.live.run import wiring
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.facts import CheckpointSaved, Evaluated, FactBody, FaultDetected, RunFinished
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

STEPS = 3
TWO_RANKS: dict[str, Any] = {"resources": {"trainer_devices": 2}}
ADAPTER: dict[str, Any] = {"trainer": {"lora_rank": 4}}
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param(TWO_RANKS, id="two ranks", marks=pytest.mark.soak),
    pytest.param(ADAPTER, id="adapter", marks=pytest.mark.soak),
]


def spec(**fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "resumed",
            "training": {"steps": STEPS, "prompts_per_step": 1, "checkpoint_every": 1},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 1, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            "schedule": {"max_staleness": 1_000},
            **fields,
        }
    )


def without_held_out_answers() -> type[EnvironmentActor]:
    """A local class, so that Ray pickles it by value."""

    class TrainingOnlyActor(EnvironmentActor):
        @ray.method(concurrency_group="inbox", num_returns=0)
        def ask(self, asks: Sequence[Ask]) -> None:
            super().ask([ask for ask in asks if ask.key.group.evaluation is None])  # type: ignore[operator]

    return TrainingOnlyActor


class Sink(MemorySink):
    """Interrupts the attempt at its first checkpoint, as a kill of the driver does."""

    def __init__(self, *, interrupts: bool = False) -> None:
        super().__init__()
        self._interrupts = interrupts

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, CheckpointSaved) and self._interrupts:
            self._interrupts = False
            raise Interrupted

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def run(
    job: JobSpec, folder: Path, sink: Sink, *, resume_from: str | None = None, jobs: Path | None = None
) -> RunFinished:
    plan = AttemptPlan(spec=job, checkpoints=folder / "checkpoints", resume_from=resume_from, jobs=jobs)
    return Attempt(plan, sink).run(lambda: None)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_second_attempt_evaluates_version_0(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = spec(**way)
    first = Sink(interrupts=True)
    with monkeypatch.context() as patch:
        patch.setattr(wiring, "EnvironmentActor", without_held_out_answers())
        assert run(job, tmp_path / "first", first).outcome == "failed"
    [saved] = first.of(CheckpointSaved)
    assert saved.step < STEPS and first.of(Evaluated) == [], "it ended before its first evaluation"
    second = Sink()
    finished = run(job, tmp_path / "second", second, resume_from=saved.uri)
    assert finished.outcome == "succeeded", finished.message
    assert sorted(body.version for body in second.of(Evaluated)) == [0, STEPS]
    assert second.of(FaultDetected) == [], "the answers are by version 0"


@pytest.mark.long
def test_job_from_another_jobs_checkpoint_evaluates_it(tmp_path: Path) -> None:
    first, second = Sink(), Sink()
    assert run(spec(), tmp_path / "one" / "attempt-1", first, jobs=tmp_path).outcome == "succeeded"
    saved = first.of(CheckpointSaved)[0]
    finished = run(spec(), tmp_path / "two" / "attempt-1", second, resume_from=saved.uri, jobs=tmp_path)
    assert finished.outcome == "succeeded", finished.message
    assert sorted(body.version for body in second.of(Evaluated)) == [saved.step, STEPS]
