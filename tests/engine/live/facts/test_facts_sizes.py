"""No fact exceeds the control plane's limit, whatever models write and replicas do: a refused fact ends the run."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from engine.live.facts.from_reports import log_lines, replicas_observed, trajectories_sampled
from engine.live.facts.recorder import Recorder
from engine.pipeline.data.ends import EndedSamples
from engine.pipeline.messages.to_driver import (
    ActivitySpan,
    ReadTrajectory,
    ReplicaObserved,
    RunBroken,
    SamplesEnded,
    StepReported,
)
from engine.pipeline.messages.to_trainer import BatchReady, BatchTrained
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import (
    BufferView,
    CompleteGroup,
    DataProgress,
    Failure,
    GroupKey,
    SampleKey,
    Trajectory,
    TrajectoryContent,
    Utterance,
)
from engine.pipeline.trainer.choice import Choice
from engine.policy.lineage import WeightsId
from engine.sinks.lines import TakenLines
from engine.sinks.memory import MemorySink
from engine.spec.facts import (
    LONGEST_LINE,
    MAX_LINES,
    MAX_SPANS,
    FactBody,
    LogLine,
    LogLines,
    ReplicasObserved,
    StepTrained,
    TrajectoriesSampled,
)

MOST_BYTES = 900_000
"""The control plane accepts bodies of 1 MiB; the rest is for the envelope of a fact."""


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


def test_long_trajectories_are_split_over_several_facts() -> None:
    facts = trajectories_sampled(1, tuple(read(each) for each in range(8)))
    assert len(facts) > 1 and max(map(size, facts)) < MOST_BYTES
    assert [sample.prompt_ordinal for fact in facts for sample in fact.trajectories] == list(range(8))


def idle(replica: int, *, spans: tuple[ActivitySpan, ...], observed_at: float) -> ReplicaObserved:
    return ReplicaObserved(
        replica=replica,
        incarnation=100,
        version=10**6,
        kv_used=0.12345678901234,
        num_running=1000,
        num_waiting=1000,
        num_with_environment=1000,
        num_prefilled=10**9,
        num_decoded=10**9,
        num_steps=10**9,
        decode_s=10**6 + 1 / 3,
        num_installs=10**6,
        install_s=10**6 + 1 / 3,
        spans=spans,
        observed_at=observed_at,
    )


def test_many_changing_replicas_share_one_fact() -> None:
    spans = tuple(
        ActivitySpan(doing="environment", started_at=each / 3, ended_at=(each + 1) / 3) for each in range(MAX_SPANS)
    )
    state = idle(63, spans=spans, observed_at=200.0)
    fact = replicas_observed([state] * 64, num_replicas=64)
    assert size(fact) < MOST_BYTES and len(fact.replicas) == 64
    assert fact.replicas[0].spans[-1].end_s == pytest.approx(MAX_SPANS / 3 - 200 if MAX_SPANS < 600 else 0, abs=1e-3)


def test_replicas_beyond_one_fact_take_turns_and_lose_no_spans() -> None:
    sink, num = MemorySink(), 150
    recorder = Recorder(sink, start_step=0)
    for second in range(1, 32):
        for replica in range(num):
            span = ActivitySpan(doing="idle" if second % 2 else "decode", started_at=second - 1.0, ended_at=second)
            if replica < 149 or second < 3:  # the last one stops reporting
                recorder.on_report(idle(replica, spans=(span,), observed_at=float(second)))
    first, *facts = [body for body in sink.bodies if isinstance(body, ReplicasObserved)]
    assert len(first.replicas) == 1 and facts[0].num_replicas == 150
    assert {state.replica for fact in facts[:3] for state in fact.replicas} >= set(range(149))
    seconds = dict.fromkeys(range(150), 0.0)
    for state in (state for fact in (first, *facts) for state in fact.replicas):
        seconds[state.replica] += sum(span.end_s - span.start_s for span in state.spans)
    # All 31 seconds, except those since the last turn, which comes in one of three facts of five seconds each.
    assert all(15 <= seconds[replica] <= 31 for replica in range(149)) and seconds[149] <= 2


def test_last_replica_spans_precede_the_end_with_their_times() -> None:
    sink, now = MemorySink(), [1_000.0]
    recorder = Recorder(sink, start_step=0, clock=lambda: now[0])
    for second in range(1, 9):
        now[0] += 1.0
        for replica in range(70):
            span = ActivitySpan(doing="decode", started_at=second - 1.0, ended_at=float(second))
            recorder.on_report(idle(replica, spans=(span,), observed_at=float(second)))
    now[0] += 2.5
    recorder.flush()
    seconds = dict.fromkeys(range(70), 0.0)
    facts = [body for body in sink.bodies if isinstance(body, ReplicasObserved)]
    for state in (state for fact in facts for state in fact.replicas):
        seconds[state.replica] += sum(span.end_s - span.start_s for span in state.spans)
    assert set(seconds.values()) == {8.0}
    assert {state.spans[-1].end_s for fact in facts[-2:] for state in fact.replicas} == {-2.5}
    recorder.flush()
    assert len([body for body in sink.bodies if isinstance(body, ReplicasObserved)]) == len(facts)


def trained_on(step: int, *, num_groups: int, group_size: int) -> tuple[BatchReady, BatchTrained]:
    """The longest texts and traces, each letter of four bytes and one token, over many turns."""
    turn = Utterance(is_own=True, start=0, num_letters=66, first_token=0, num_tokens=66, tool="t", arguments="𝄞" * 999)
    turns = tuple(replace(turn, start=66 * at, first_token=66 * at) for at in range(300))
    groups = []
    for ordinal in range(num_groups):
        first = read(ordinal).trajectory
        long = [replace(first, reward=float(sample % 2)) for sample in range(group_size)]
        own = (replace(each, content=replace(each.content, utterances=turns)) for each in long if each.content)
        groups.append(CompleteGroup(key=GroupKey(ordinal=ordinal), trajectories=tuple(own)))
    buffer = BufferView(num_ready=0, num_in_progress=0)
    batch = BatchReady(step=step, groups=tuple(groups), progress=DataProgress(), buffer=buffer)
    num, logprobs = num_groups * group_size, Floats.of([-12.3456789] * 2_048)
    return batch, BatchTrained(step=step, metrics={}, advantages=(0.1,) * num, logprobs=(logprobs,) * num)


@pytest.mark.long
def test_facts_stay_within_their_byte_rate() -> None:
    """Two steps a second of large groups, samples with other ends, a hundred metrics, and 70 replicas that change
    all the time. Log lines have a rate of their own."""
    sink, choice, seconds, steps_a_second = MemorySink(), Choice(), 60, 2
    recorder = Recorder(sink, start_step=0, spell=lambda ids: ["𝄞"] * len(ids))
    ended = EndedSamples(group_size=64, staleness=lambda trajectory: 1)
    spans = tuple(ActivitySpan(doing="environment", started_at=at / 500, ended_at=(at + 1) / 500) for at in range(500))
    batch, trained = trained_on(1, num_groups=2, group_size=64)
    metrics = {f"train/of_a_long_name_{number}": 0.12345678901234 for number in range(100)}
    for step in range(1, seconds * steps_a_second + 1):
        now = step / steps_a_second
        read_at = replace(batch, step=step), replace(trained, step=step)
        to_read = choice.to_read(*read_at, step_s=1 / steps_a_second)
        recorder.on_report(StepReported(step=step, metrics=metrics, to_read=to_read))
        ended.dropped(batch.groups[0])
        recorder.on_report(SamplesEnded(step=step, to_read=ended.take(now)))
        for replica in range(70) if step % (2 * steps_a_second) == 0 else ():
            recorder.on_report(idle(replica, spans=spans, observed_at=now))
    kinds = {
        kind: sum(size(fact) for fact in sink.bodies if isinstance(fact, kind)) for kind in {*map(type, sink.bodies)}
    }
    assert set(kinds) == {StepTrained, TrajectoriesSampled, ReplicasObserved}
    assert sum(kinds.values()) < 200_000 * seconds, kinds
    assert max(map(size, sink.bodies)) < MOST_BYTES


def lines(num: int, text: str = "x", *, component: str = "rollout-0", num_dropped: int = 0) -> TakenLines:
    line = LogLine(at=datetime(2026, 1, 1, tzinfo=UTC), level="info", message=text)
    return TakenLines(component=component, lines=(line,) * num, num_dropped=num_dropped)


def test_long_lines_are_split_and_dropped_lines_count_once() -> None:
    facts = log_lines([lines(MAX_LINES, "𝄞" * LONGEST_LINE, num_dropped=3), lines(MAX_LINES, "𝄞", num_dropped=4)])
    assert max(map(size, facts)) < MOST_BYTES
    assert [len(fact.lines) for fact in facts] == [MAX_LINES] * 2
    assert [fact.num_dropped for fact in facts] == [7, 0]
    assert [fact.num_dropped for fact in log_lines([lines(0, num_dropped=9)])] == [9]


def test_outcome_of_a_trajectory_is_reported() -> None:
    late, broken = Failure(kind="timeout", reason="no answer"), Failure(kind="error", reason="took longer than 5 s")
    failed = (read(3, failure=late), read(4, failure=broken))
    reads = (read(0), read(1, cut=True), read(2, cut=True, trusted=False), *failed)
    facts = trajectories_sampled(1, reads)
    outcomes = [sample.outcome for fact in facts for sample in fact.trajectories]
    assert outcomes == ["rewarded", "cut", "untrusted", "timeout", "error"]


def test_lines_are_recorded_before_a_broken_run_ends() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    recorder.on_lines(lines(2))
    recorder.on_lines(lines(1, component="trainer"))
    recorder.on_lines(lines(3))
    assert sink.bodies == []
    recorder.on_report(RunBroken(failure_class="user_code", message="it broke"))
    counts = [(body.component, len(body.lines)) for body in sink.bodies if isinstance(body, LogLines)]
    assert counts == [("rollout-0", 5), ("trainer", 1)]
