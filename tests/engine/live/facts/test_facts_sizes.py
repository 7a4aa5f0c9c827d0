"""No fact is larger than the control plane takes, whatever models write and replicas do: a refused one ends the run."""

from datetime import UTC, datetime

import pytest

from engine.live.facts.from_reports import log_lines, replicas_observed, trajectories_sampled
from engine.live.facts.recorder import Recorder
from engine.pipeline.messages.to_driver import ActivitySpan, ReadTrajectory, ReplicaObserved, RunBroken, StepReported
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import Failure, GroupKey, SampleKey, Trajectory, TrajectoryContent
from engine.policy.lineage import WeightsId
from engine.sinks.lines import LinesSaid
from engine.sinks.memory import MemorySink
from engine.spec.facts import LONGEST_LINE, MAX_LINES, MAX_SPANS, FactBody, LogLine, LogLines

MOST_BYTES = 900_000
"""The control plane takes bodies of 1 MiB; the rest is for what stands around a fact."""


def size(fact: FactBody) -> int:
    return len(fact.model_dump_json().encode())


def read(ordinal: int, *, failure: Failure | None = None, cut: bool = False, trusted: bool = True) -> ReadTrajectory:
    num_tokens = 50_000
    content = TrajectoryContent(
        prompt_ids=Ints.of([1]),
        response_ids=Ints.of([151_000] * num_tokens),
        logprobs=Floats.of([-12.345678901234567] * num_tokens),
        prompt_text="𝄞" * 60_000,
        response_text="𝄞" * 60_000,
        remark="𝄞" * 60_000,
    )
    trajectory = Trajectory(
        key=SampleKey(group=GroupKey(ordinal=ordinal), sample=0),
        weights=WeightsId(0, 10**6),
        reward=0.1,
        trusted=trusted,
        num_tokens=num_tokens,
        failure=failure,
        cut=cut,
        content=content,
    )
    return ReadTrajectory(trajectory=trajectory, staleness=1, advantage=0.1234567890123)


def test_long_trajectories_are_told_in_several_facts_and_none_is_lost() -> None:
    told = trajectories_sampled(StepReported(step=1, metrics={}, to_read=tuple(read(each) for each in range(8))))
    assert len(told) > 1 and max(map(size, told)) < MOST_BYTES
    assert [sample.prompt_ordinal for fact in told for sample in fact.trajectories] == list(range(8))


def test_many_replicas_that_change_all_the_time_are_told_in_one_fact() -> None:
    spans = tuple(
        ActivitySpan(doing="environment", started_at=each / 3, ended_at=(each + 1) / 3) for each in range(MAX_SPANS)
    )
    state = ReplicaObserved(
        replica=63,
        incarnation=100,
        version=10**6,
        kv_used=0.12345678901234,
        num_running=1000,
        num_waiting=1000,
        num_with_environment=1000,
        num_prefilled=10**9,
        num_decoded=10**9,
        spans=spans,
        observed_at=200.0,
    )
    fact = replicas_observed([state] * 64)
    assert size(fact) < MOST_BYTES and len(fact.replicas) == 64
    assert fact.replicas[0].spans[-1].end_s == pytest.approx(MAX_SPANS / 3 - 200 if MAX_SPANS < 600 else 0, abs=1e-3)


def lines(num: int, text: str = "x", *, component: str = "rollout-0", num_dropped: int = 0) -> LinesSaid:
    line = LogLine(at=datetime(2026, 1, 1, tzinfo=UTC), level="info", message=text)
    return LinesSaid(component=component, lines=(line,) * num, num_dropped=num_dropped)


def test_long_lines_are_told_in_several_facts_and_the_loss_once() -> None:
    told = log_lines([lines(MAX_LINES, "𝄞" * LONGEST_LINE, num_dropped=3), lines(MAX_LINES, "𝄞", num_dropped=4)])
    assert max(map(size, told)) < MOST_BYTES
    assert [len(fact.lines) for fact in told] == [MAX_LINES] * 2
    assert [fact.num_dropped for fact in told] == [7, 0]
    assert [fact.num_dropped for fact in log_lines([lines(0, num_dropped=9)])] == [9]


def test_the_outcome_of_a_trajectory_is_told() -> None:
    late, broken = Failure(kind="timeout", reason="no answer"), Failure(kind="error", reason="took longer than 5 s")
    failed = (read(3, failure=late), read(4, failure=broken))
    reads = (read(0), read(1, cut=True), read(2, cut=True, trusted=False), *failed)
    told = trajectories_sampled(StepReported(step=1, metrics={}, to_read=reads))
    outcomes = [sample.outcome for fact in told for sample in fact.trajectories]
    assert outcomes == ["rewarded", "cut", "untrusted", "timeout", "error"]


def test_lines_are_told_before_a_broken_run_ends() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    recorder.on_lines(lines(2))
    recorder.on_lines(lines(1, component="trainer"))
    recorder.on_lines(lines(3))
    assert sink.bodies == []
    recorder.on_report(RunBroken(failure_class="user_code", message="it broke"))
    told = [(body.component, len(body.lines)) for body in sink.bodies if isinstance(body, LogLines)]
    assert told == [("rollout-0", 5), ("trainer", 1)]
