"""A real job on a real Ray: it trains, survives a killed replica, obeys a cancel, and goes on from a checkpoint."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.live.attempt import Attempt, AttemptPlan
from engine.live.checkpoints import open_checkpoint
from engine.live.interruptions import Fenced
from engine.sinks.http_shipper import Signal
from engine.sinks.memory import MemorySink
from engine.spec.facts import (
    CheckpointSaved,
    Evaluated,
    FactBody,
    FaultDetected,
    PhaseChanged,
    PipelineReady,
    RequestAcknowledged,
    RunFinished,
    StepTrained,
    TrajectoriesSampled,
)
from engine.spec.job import JobSpec

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]


def spec(*, steps: int = 3, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "live",
            "training": {"steps": steps, "prompts_per_step": 4, "checkpoint_every": 2},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            **fields,
        }
    )


class WatchingSink(MemorySink):
    """Does something when a step has been trained."""

    def __init__(self, at_step: int = -1, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._at_step, self._then = at_step, then

    def record(self, body: FactBody) -> None:
        super().record(body)
        if isinstance(body, StepTrained) and body.step == self._at_step:
            self._then()

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def run(
    job: JobSpec, folder: Path, sink: WatchingSink, signals: Callable[[], list[Signal]] = list, **plan: Any
) -> RunFinished:
    attempt = Attempt(AttemptPlan(spec=job, checkpoints=folder, **plan), sink, signals)
    return attempt.run(lambda: None)


def nothing_is_left(processes_of: Callable[[str], list[Any]]) -> bool:
    deadline = time.monotonic() + 10  # ray.kill is asynchronous
    while any(
        processes_of(kind) for kind in ("TrainerActor", "RolloutActor", "DataActor", "RelayActor", "EnvironmentActor")
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("schedule", ["laminar", "sync"])
def test_a_job_trains_evaluates_saves_and_cleans_up(
    schedule: str, tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    sink = WatchingSink()
    finished = run(spec(schedule={"name": schedule}), tmp_path, sink)
    assert finished.outcome == "succeeded", finished.message
    assert finished.ledger == {"trained": 48, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == [1, 2, 3]
    assert [body.version for body in sink.of(Evaluated)] == [0, 3]
    assert [body.step for body in sink.of(CheckpointSaved)] == [2, 3]
    assert [body.phase for body in sink.of(PhaseChanged)] == [
        "provisioning", "loading_weights", "evaluating", "training", "finalizing",
    ]  # fmt: skip
    assert len(sink.of(PipelineReady)) == 1 and sink.of(PipelineReady)[0].num_parameters > 0
    metrics = sink.of(StepTrained)[-1].metrics
    for name in (
        "reward/mean", "train/loss", "train/entropy", "length/mean", "length/p99", "throughput/tokens_per_s",
        "throughput/trajectories_per_s", "staleness/mean", "staleness/max", "trainer/wait_fraction", "buffer/groups",
    ):  # fmt: skip
        assert name in metrics
    if schedule == "sync":
        assert metrics["staleness/max"] == 0
    assert 1 <= len(sink.of(TrajectoriesSampled)[0].trajectories) <= 8
    assert sink.of(TrajectoriesSampled)[0].trajectories[0].response
    assert nothing_is_left(processes_of)


def test_a_killed_replica_is_replaced_and_nothing_is_lost_or_doubled(
    tmp_path: Path, processes_of: Callable[[str], list[Any]]
) -> None:
    sink = WatchingSink(2, lambda: processes_of("RolloutActor")[0].send_signal(signal.SIGKILL))
    finished = run(spec(steps=60, training={"steps": 60, "prompts_per_step": 4}), tmp_path, sink)
    assert finished.outcome == "succeeded", finished.message
    assert finished.ledger == {"trained": 960, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    (fault,) = sink.of(FaultDetected)
    assert fault.component.startswith("rollout/") and "replacement" in fault.action
    assert [body.version for body in sink.of(Evaluated)] == [0, 60]


def test_a_run_in_which_nothing_moves_is_broken_off(tmp_path: Path, processes_of: Callable[[str], list[Any]]) -> None:
    sink = WatchingSink(1, lambda: processes_of("DataActor")[0].send_signal(signal.SIGSTOP))
    finished = run(spec(steps=200), tmp_path, sink, no_progress_s=3.0)
    assert (finished.outcome, finished.failure_class) == ("failed", "infrastructure")
    assert "nothing moved" in finished.message
    assert sink.of(StepTrained)


def test_a_cancel_stops_everything_within_seconds(tmp_path: Path, processes_of: Callable[[str], list[Any]]) -> None:
    asked: list[Signal] = []
    cancelled_at: list[float] = []

    def cancel() -> None:
        asked.append(Signal(kind="cancel", request_id="r1"))
        cancelled_at.append(time.monotonic())

    def signals() -> list[Signal]:
        taken = list(asked)
        asked.clear()
        return taken

    sink = WatchingSink(2, cancel)
    finished = run(spec(steps=1_000), tmp_path, sink, signals)
    assert finished.outcome == "cancelled"
    assert time.monotonic() - cancelled_at[0] < 5
    assert sink.of(RequestAcknowledged)[0].request_id == "r1"
    assert sink.bodies[-1] == finished
    assert nothing_is_left(processes_of)


def test_a_fenced_attempt_stops_and_says_nothing_more(tmp_path: Path, processes_of: Callable[[str], list[Any]]) -> None:
    fenced: list[Signal] = []
    sink = WatchingSink(1, lambda: fenced.append(Signal(kind="fenced", message="epoch 2 runs")))
    with pytest.raises(Fenced):
        run(spec(steps=1_000), tmp_path, sink, lambda: fenced)
    assert not sink.of(RunFinished)
    assert nothing_is_left(processes_of)


def test_a_resumed_attempt_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    first = WatchingSink()
    run(spec(steps=4), tmp_path / "first", first)
    saved = first.of(CheckpointSaved)[0]
    assert saved.step == 2
    second = WatchingSink()
    finished = run(spec(steps=4), tmp_path / "second", second, resume_from=saved.uri)
    assert finished.outcome == "succeeded", finished.message
    assert [body.step for body in second.of(StepTrained)] == [3, 4]
    assert finished.ledger["trained"] == 4 * 16
    assert [body.version for body in second.of(Evaluated)] == [4]
    ended_before = {
        ordinal for start, stop in open_checkpoint(saved.uri).progress.ended for ordinal in range(start, stop)
    }
    trained_after = {
        trajectory.prompt_ordinal for body in second.of(TrajectoriesSampled) for trajectory in body.trajectories
    }
    assert len(ended_before) == 8 and not ended_before & trained_after


def test_a_torn_checkpoint_is_refused(tmp_path: Path) -> None:
    first = WatchingSink()
    run(spec(steps=2), tmp_path / "first", first)
    uri = first.of(CheckpointSaved)[0].uri
    progress = Path(uri.removeprefix("file://")) / "progress" / "progress.json"
    progress.write_text(progress.read_text().replace('"step": 2', '"step": 1'))
    finished = run(spec(steps=4), tmp_path / "second", WatchingSink(), resume_from=uri)
    assert (finished.outcome, finished.failure_class) == ("failed", "data")


def test_a_model_that_is_not_there_is_the_users_to_mend(tmp_path: Path) -> None:
    finished = run(spec(model={"source": "no/such/folder"}), tmp_path, WatchingSink())
    assert (finished.outcome, finished.failure_class) == ("failed", "config")
    assert "model.source" in finished.message


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    finished = run(spec(training={"steps": 100_000}, max_runtime_s=10), tmp_path, WatchingSink())
    assert (finished.outcome, finished.failure_class) == ("failed", "timeout")


def test_evaluations_in_between_are_by_exactly_their_version(tmp_path: Path) -> None:
    sink = WatchingSink()
    finished = run(spec(steps=6, evaluation={"prompts": 8, "every": 2}), tmp_path, sink)
    assert finished.outcome == "succeeded", finished.message
    assert sorted(body.version for body in sink.of(Evaluated)) == [0, 2, 4, 6]
    assert not sink.of(FaultDetected)
