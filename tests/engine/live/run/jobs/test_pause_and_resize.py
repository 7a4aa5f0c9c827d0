"""Pause, resume and resize of a real job on a real Ray: no sample is lost, and devices are released."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.control import ControlRequest
from engine.spec.facts import (
    CheckpointSaved,
    FactBody,
    FaultDetected,
    PipelineReady,
    ReplicasResized,
    RequestAcknowledged,
    RunFinished,
    StepTrained,
    TrajectoriesSampled,
)
from engine.spec.job import JobSpec
from tests.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

STEPS, PER_STEP = 12, 16
ALONE = {"replicas": 1, "max_batch": 16, "max_new_tokens": 40}


def spec(*, steps: int = STEPS, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "live",
            "training": {"steps": steps, "prompts_per_step": 4, "checkpoint_every": 1_000},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            "schedule": {"max_staleness": 1_000},  # a busy machine delays samples; none is dropped as stale
            **fields,
        }
    )


class RequestingSink(MemorySink):
    """Sends requests after certain facts, as a user would."""

    def __init__(self, at_steps: dict[int, ControlRequest] | None = None) -> None:
        super().__init__()
        self._at_steps = at_steps or {}
        self._sent: list[ControlRequest] = []
        self.seen: list[Callable[[FactBody], None]] = []

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and body.step in self._at_steps:
            self._sent.append(self._at_steps.pop(body.step))
        for look in self.seen:
            look(body)

    def send(self, request: ControlRequest) -> None:
        self._sent.append(request)

    def requests(self) -> list[ControlRequest]:
        sent, self._sent = self._sent, []
        return sent

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def run(job: JobSpec, folder: Path, sink: RequestingSink, **plan: Any) -> RunFinished:
    attempt = Attempt(AttemptPlan(spec=job, checkpoints=folder / "checkpoints", **plan), sink, sink.requests)
    return attempt.run(lambda: None)


@pytest.mark.long
def test_paused_job_resumes_and_its_ledger_is_exact(tmp_path: Path) -> None:
    first = RequestingSink({5: ControlRequest(id="p1", kind="pause")})

    paused = run(spec(), tmp_path / "first", first)
    assert paused.outcome == "paused", paused.message
    last = first.of(StepTrained)[-1].step
    assert 5 <= last <= 7, "the step in progress may end, and no other starts"
    (saved,) = first.of(CheckpointSaved)
    assert saved.step == last, "every trained step is saved"
    assert [body.request_id for body in first.of(RequestAcknowledged)] == ["p1"]
    assert not first.of(FaultDetected)

    second = RequestingSink()
    finished = run(spec(), tmp_path / "second", second, resume_from=saved.uri)
    assert finished.outcome == "succeeded", finished.message
    assert [body.step for body in second.of(StepTrained)] == list(range(last + 1, STEPS + 1))
    assert finished.ledger == {"trained": STEPS * PER_STEP, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    before, after = (
        {trajectory.prompt_ordinal for body in sink.of(TrajectoriesSampled) for trajectory in body.trajectories}
        for sink in (first, second)
    )
    assert not before & after, "no prompt is trained on both sides of the pause"


@pytest.mark.long
def test_pause_before_the_first_step_ends_at_once(tmp_path: Path) -> None:
    sink = RequestingSink()
    sink.send(ControlRequest(id="p0", kind="pause"))
    finished = run(spec(rollout=ALONE), tmp_path, sink)
    assert finished.outcome == "paused" and not sink.of(StepTrained) and not sink.of(CheckpointSaved)
    assert sink.of(RequestAcknowledged)[0].request_id == "p0"


@pytest.mark.long
def test_cancel_wins_over_a_pause(tmp_path: Path) -> None:
    sink = RequestingSink({2: ControlRequest(id="p", kind="pause")})
    sink.seen.append(
        lambda body: (
            sink.send(ControlRequest(id="c", kind="cancel"))
            if isinstance(body, StepTrained) and body.step == 2
            else None
        )
    )
    assert run(spec(steps=1_000, rollout=ALONE), tmp_path, sink).outcome == "cancelled"


def cpus_free() -> float:
    return float(ray.available_resources().get("CPU", 0.0))  # type: ignore[no-untyped-call]


@pytest.mark.long
def test_replicas_leave_and_return_while_training_continues(
    tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    steps = 150  # enough time for a replica to leave and another to load torch
    job = spec(steps=steps, placement={"min_replicas": 1})
    sink = RequestingSink()
    seen: dict[str, Any] = {}

    def look(body: FactBody) -> None:
        if isinstance(body, StepTrained) and "before" not in seen and len(processes_of("RolloutActor")) == 2:
            seen["before"] = body.step
            sink.send(ControlRequest(id="r1", kind="resize", replicas=1))
        if isinstance(body, ReplicasResized) and body.replicas == 1:
            replicas = eventually(
                lambda: processes_of("RolloutActor"), "one replica is left", until=lambda processes: len(processes) <= 1
            )
            seen["smaller"] = len(replicas)
            sink.send(ControlRequest(id="r2", kind="resize", replicas=2))
        if isinstance(body, ReplicasResized) and body.replicas == 2:
            seen["larger"] = body

    sink.seen.append(look)
    finished = run(job, tmp_path, sink)
    assert finished.outcome == "succeeded", finished.message
    assert seen["before"] < steps and seen["smaller"] == 1
    assert [body.replicas for body in sink.of(ReplicasResized)] == [1, 2]
    assert [body.request_id for body in sink.of(RequestAcknowledged)] == ["r1", "r2"]
    assert finished.ledger == {"trained": steps * PER_STEP, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == list(range(1, steps + 1))
    assert not sink.of(FaultDetected)


@pytest.mark.long
def test_job_starts_with_its_granted_replicas(tmp_path: Path, processes_of: Callable[[str], list[Any]]) -> None:
    sink = RequestingSink()
    counted: list[int] = []
    sink.seen.append(
        lambda body: counted.append(len(processes_of("RolloutActor"))) if isinstance(body, StepTrained) else None
    )
    finished = run(spec(steps=2, placement={"min_replicas": 1}), tmp_path, sink, replicas=1)
    assert finished.outcome == "succeeded", finished.message
    assert sink.of(PipelineReady)[0].num_replicas == 1 and max(counted) == 1
