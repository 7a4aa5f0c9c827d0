"""A real job on a real Ray: it trains, survives a killed replica, obeys a cancel, and resumes from a checkpoint.

Every job starts processes that load torch for seconds each: most jobs have one replica, and tests that only inspect a
successful run share one.
"""

import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backend.pages.job.panels.charts import KEYS
from engine.commands.replay_step import replay_step
from engine.live.checkpoints.resuming import open_checkpoint
from engine.live.process.interruptions import Fenced
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.policy.recovery import Patience
from engine.sinks.control_plane import StaleFence
from engine.sinks.memory import MemorySink
from engine.spec.control import ControlRequest
from engine.spec.facts import (
    CheckpointSaved,
    Evaluated,
    FactBody,
    FaultDetected,
    LogLines,
    PhaseChanged,
    PipelineReady,
    ReplicasObserved,
    RequestAcknowledged,
    RunFinished,
    StepTrained,
    TrajectoriesSampled,
)
from engine.spec.job import JobSpec
from engine.spec.series import find_series
from tests.engine.live.conftest import actor_processes
from tests.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

ALONE = {"replicas": 1, "max_batch": 16, "max_new_tokens": 40}
ProcessesOf = Callable[[str], list[Any]]


def spec(*, steps: int = 3, **fields: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "live",
            "training": {"steps": steps, "prompts_per_step": 4, "checkpoint_every": 2},
            "algorithm": {"group_size": 4},
            "rollout": {"replicas": 2, "max_batch": 16, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            "schedule": {"max_staleness": 1_000},  # a busy machine delays samples; none is dropped as stale
            **fields,
        }
    )


class WatchingSink(MemorySink):
    """Calls `then` when a step has been trained."""

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
    job: JobSpec, folder: Path, sink: WatchingSink, requests: Callable[[], list[ControlRequest]] = list, **plan: Any
) -> RunFinished:
    attempt = Attempt(AttemptPlan(spec=job, checkpoints=folder, **plan), sink, requests)
    return attempt.run(lambda: None)


def wait_for_the_end_of_actors(processes_of: ProcessesOf) -> None:
    """ray.kill is asynchronous."""
    kinds = ("TrainerActor", "RolloutActor", "DataActor", "RelayActor", "EnvironmentActor")
    eventually(
        lambda: [process for kind in kinds for process in processes_of(kind)],
        "every actor has ended",
        until=lambda processes: not processes,
        every_s=0.1,
    )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A successful run of four steps, whose actors have ended."""

    finished: RunFinished
    sink: WatchingSink
    recorded: Path | None = None

    @property
    def first_checkpoint(self) -> str:
        saved: CheckpointSaved = self.sink.of(CheckpointSaved)[0]
        assert saved.step == 2
        return saved.uri


@pytest.fixture(scope="module")
def laminar(own_ray: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    sink = WatchingSink()
    finished = run(spec(steps=4, evaluation={"prompts": 8, "every": 2}), tmp_path_factory.mktemp("laminar"), sink)
    wait_for_the_end_of_actors(actor_processes)
    return Trained(finished=finished, sink=sink)


@pytest.fixture(scope="module")
def sync(own_ray: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    sink = WatchingSink()
    folder, recorded = tmp_path_factory.mktemp("sync"), tmp_path_factory.mktemp("recorded") / "step-3"
    finished = run(spec(steps=4, schedule={"name": "sync"}), folder, sink, recorded_step=(3, recorded))
    wait_for_the_end_of_actors(actor_processes)
    return Trained(finished=finished, sink=sink, recorded=recorded)


@pytest.mark.proof
@pytest.mark.long_except("laminar")
@pytest.mark.parametrize("schedule", ["laminar", "sync"])
def test_job_trains_evaluates_saves_and_cleans_up(schedule: str, request: pytest.FixtureRequest) -> None:
    trained: Trained = request.getfixturevalue(schedule)
    sink, finished = trained.sink, trained.finished
    assert finished.outcome == "succeeded", finished.message
    assert finished.ledger == {"trained": 64, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}
    assert [body.step for body in sink.of(StepTrained)] == [1, 2, 3, 4]
    assert sorted(body.version for body in sink.of(Evaluated)) == ([0, 2, 4] if schedule == "laminar" else [0, 4])
    assert [body.step for body in sink.of(CheckpointSaved)] == [2, 4]
    assert not sink.of(FaultDetected)
    assert [body.phase for body in sink.of(PhaseChanged)] == [
        "provisioning", "loading_weights", "training", "finalizing",
    ]  # fmt: skip
    assert len(sink.of(PipelineReady)) == 1 and sink.of(PipelineReady)[0].num_parameters > 0
    metrics = sink.of(StepTrained)[-1].metrics
    for name in (
        "reward/mean", "train/loss", "train/entropy", "length/mean", "length/p99", "throughput/tokens_per_s",
        "throughput/trajectories_per_s", "staleness/mean", "staleness/max", "trainer/wait_fraction", "buffer/groups",
    ):  # fmt: skip
        assert name in metrics
    drawn = {key for key in KEYS if not key.startswith("evaluation/")}
    ever = {name for body in sink.of(StepTrained) for name in body.metrics}  # not every step has tokens of its version
    assert drawn <= ever, "a chart of the job's page draws a series that no step has"
    assert all(map(find_series, ever))
    if schedule == "sync":
        assert metrics["staleness/max"] == 0
    samples = sink.of(TrajectoriesSampled)[0].trajectories
    assert samples[0].response
    num_samples = Counter(each.prompt_ordinal for each in samples if each.end == "trained")
    assert samples[0].group_size in num_samples.values(), "no group is reported whole"


@pytest.mark.long
def test_recorded_step_of_a_job_replays_bit_for_bit(
    sync: Trained, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay_step([str(sync.recorded)]) == 0
    assert "step 3: bit for bit the same" in capsys.readouterr().out


def test_logs_of_each_part_are_reported_before_the_end(laminar: Trained) -> None:
    logs = laminar.sink.of(LogLines)
    assert {"trainer", "data", "environment", "relay-0", "rollout-0", "rollout-1"} <= {body.component for body in logs}
    first = next(line.message for body in logs if body.component == "rollout-1" for line in body.lines)
    assert first.startswith("part=rollout/1 incarnation=0 host=")
    assert isinstance(laminar.sink.bodies[-1], RunFinished)
    observed = laminar.sink.of(ReplicasObserved)
    assert observed, "no replica was observed"
    assert all(span.end_s <= 0 for body in observed for replica in body.replicas for span in replica.spans)


@pytest.mark.long
def test_run_in_which_nothing_moves_fails(tmp_path: Path, processes_of: ProcessesOf) -> None:
    sink = WatchingSink(1, lambda: processes_of("DataActor")[0].send_signal(signal.SIGSTOP))
    finished = run(spec(steps=200, rollout=ALONE), tmp_path, sink, patience=Patience(nothing_moves_s=3.0))
    assert (finished.outcome, finished.failure_class) == ("failed", "platform")
    assert "no progress for" in finished.message
    assert sink.of(StepTrained)


@pytest.mark.proof
def test_cancel_stops_everything_at_once(tmp_path: Path, processes_of: ProcessesOf) -> None:
    pending: list[ControlRequest] = []

    def cancel() -> None:
        pending.append(ControlRequest(id="r1", kind="cancel"))

    def requests() -> list[ControlRequest]:
        batch = list(pending)
        pending.clear()
        return batch

    sink = WatchingSink(2, cancel)
    finished = run(spec(steps=1_000, rollout=ALONE), tmp_path, sink, requests)
    assert finished.outcome == "cancelled"
    assert sink.of(StepTrained)[-1].step < 1_000
    assert sink.of(RequestAcknowledged)[0].request_id == "r1"
    assert sink.bodies[-1] == finished
    wait_for_the_end_of_actors(processes_of)


@pytest.mark.long
def test_fenced_attempt_stops_and_records_nothing_more(tmp_path: Path, processes_of: ProcessesOf) -> None:
    fenced: list[StaleFence] = []

    def requests() -> list[ControlRequest]:
        for error in fenced:
            raise error
        return []

    sink = WatchingSink(1, lambda: fenced.append(StaleFence("fence 2 runs")))
    with pytest.raises(Fenced, match="fence 2 runs"):
        run(spec(steps=1_000, rollout=ALONE), tmp_path, sink, requests)
    assert not sink.of(RunFinished)
    wait_for_the_end_of_actors(processes_of)


@pytest.mark.long
def test_resumed_attempt_continues_from_its_checkpoint(laminar: Trained, tmp_path: Path) -> None:
    second = WatchingSink()
    finished = run(spec(steps=4), tmp_path, second, resume_from=laminar.first_checkpoint)
    assert finished.outcome == "succeeded", finished.message
    assert [body.step for body in second.of(StepTrained)] == [3, 4]
    assert finished.ledger["trained"] == 4 * 16
    assert [body.version for body in second.of(Evaluated)] == [4]
    ended = open_checkpoint(laminar.first_checkpoint).progress.ended
    ended_before = {ordinal for start, stop in ended for ordinal in range(start, stop)}
    trained_after = {
        trajectory.prompt_ordinal for body in second.of(TrajectoriesSampled) for trajectory in body.trajectories
    }
    assert len(ended_before) == 8 and not ended_before & trained_after


def test_torn_checkpoint_is_refused(laminar: Trained, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(laminar.first_checkpoint.removeprefix("file://"), torn)
    progress = torn / "progress" / "progress.json"
    progress.write_text(progress.read_text().replace('"step": 2', '"step": 1'))
    finished = run(spec(steps=4), tmp_path / "second", WatchingSink(), resume_from=f"file://{torn}")
    assert (finished.outcome, finished.failure_class) == ("failed", "data")


@pytest.mark.long
def test_damaged_checkpoint_is_detected_by_the_loading_rank(laminar: Trained, tmp_path: Path) -> None:
    """The driver cannot see the damage: every part has its size."""
    damaged = tmp_path / "damaged"
    shutil.copytree(laminar.first_checkpoint.removeprefix("file://"), damaged)
    moments = damaged / "optimizer.safetensors"
    moments.write_bytes(moments.read_bytes()[:-1] + b"x")
    open_checkpoint(f"file://{damaged}")
    finished = run(spec(steps=4), tmp_path / "second", WatchingSink(), resume_from=f"file://{damaged}")
    assert (finished.outcome, finished.failure_class) == ("failed", "data")
    assert "rank 0: " in finished.message and f"{damaged}: optimizer.safetensors has" in finished.message


@pytest.mark.long
def test_missing_model_fails_as_config(tmp_path: Path) -> None:
    finished = run(spec(model={"source": "no/such/folder"}, rollout=ALONE), tmp_path, WatchingSink())
    assert (finished.outcome, finished.failure_class) == ("failed", "config")
    assert "model.source" in finished.message


@pytest.mark.long
def test_job_beyond_its_max_runtime_is_stopped(tmp_path: Path) -> None:
    sink = WatchingSink()
    finished = run(spec(training={"steps": 100_000}, rollout=ALONE, max_runtime_s=40), tmp_path, sink)
    assert (finished.outcome, finished.failure_class) == ("failed", "timeout")
    last = max((trained.step for trained in sink.of(StepTrained)), default=0)
    assert not last or f"A checkpoint of step {last} is saved" in finished.message
