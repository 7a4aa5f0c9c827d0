"""Facts of a run are finite, printable and of the shape that the control plane accepts."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.live.facts.from_reports import evaluated, finite, printable, step_trained, trajectories_sampled
from engine.live.facts.recorder import Recorder
from engine.live.facts.token_texts import texts_of_tokens
from engine.live.process.settings import Settings
from engine.live.run.model_source import BUILT_IN
from engine.models.tokenizer import Tokenizer
from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, EnterPhase
from engine.pipeline.failure_counts import FailureCounts
from engine.pipeline.messages.to_driver import (
    AnswersCounted,
    EvaluationReported,
    LedgerReported,
    ReadTrajectory,
    SamplesEnded,
    StepReported,
    WeightsTaken,
)
from engine.pipeline.packed import Floats, Ints, Marks
from engine.pipeline.records import Failure, GroupKey, SampleKey, Trajectory, TrajectoryContent
from engine.policy.lineage import WeightsId
from engine.sinks.memory import MemorySink
from engine.spec.facts import (
    Evaluated,
    PhaseChanged,
    PipelineReady,
    PromptsAnswered,
    ReplicasResized,
    RequestAcknowledged,
    StepTrained,
    TrajectoriesSampled,
)


def report(step: int = 1, **metrics: float) -> StepReported:
    return StepReported(step=step, metrics={"reward/mean": 0.5, **metrics}, to_read=())


def test_nonfinite_metrics_are_dropped_and_counted() -> None:
    assert finite({"a": 1.0, "b": float("nan"), "c": float("inf")}) == {"a": 1.0, "train/nonfinite_metrics": 2.0}
    assert step_trained(report(loss=float("nan")), {}, ledger={}).metrics["train/nonfinite_metrics"] == 1.0


def test_model_text_is_made_printable_and_shortened() -> None:
    assert printable("a\x00b\x1b[0m\ud800\ttab\nline") == "a\ufffdb\ufffd[0m\ufffd\ttab\nline"
    assert len(printable("x" * 50_000)) < 20_010


def test_hostile_response_becomes_a_fact() -> None:
    content = TrajectoryContent(
        prompt_ids=Ints.of([1]),
        response_ids=Ints.of([2]),
        logprobs=Floats.of([0.0]),
        prompt_text="\x00",
        response_text="\udfff",
        remark="\x07",
    )
    trajectory = Trajectory(
        key=SampleKey(group=GroupKey(ordinal=0), sample=0),
        weights=WeightsId(0, 0),
        reward=0.0,
        num_tokens=1,
        content=content,
    )
    read = ReadTrajectory(trajectory=trajectory, staleness=0, advantage=float("nan"))
    [sampled] = trajectories_sampled(1, (read,))
    assert sampled.trajectories[0].response == "\ufffd"


def test_tokens_carry_texts_and_aligned_trainer_logprobs() -> None:
    content = TrajectoryContent(
        prompt_ids=Ints.of([1]),
        response_ids=Ints.of([5, 6, 7]),
        logprobs=Floats.of([-1.0, 0.0, -3.0]),
        written=Marks.of([True, False, True]),
        prompt_text="",
        response_text="",
        remark="",
    )
    trajectory = Trajectory(
        key=SampleKey(group=GroupKey(ordinal=0), sample=0),
        weights=WeightsId(0, 0),
        reward=0.0,
        num_tokens=3,
        content=content,
    )
    read = ReadTrajectory(trajectory=trajectory, staleness=0, advantage=0.0, logprobs=Floats.of([-1.5, -3.5]))
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0, spell=lambda ids: [f"\x00{token}" for token in ids])
    for each in (read, replace(read, logprobs=Floats.of([-1.5]))):
        recorder.on_report(StepReported(step=1, metrics={}, to_read=(each,)))
    whole, unknown = (body.trajectories[0].trace for body in sink.bodies if isinstance(body, TrajectoriesSampled))
    assert whole is not None and whole.texts == ["\ufffd5", "\ufffd6", "\ufffd7"]
    assert whole.trainer_logprobs == [-1.5, 0.0, -3.5]
    assert unknown is not None and unknown.trainer_logprobs == []


def test_tokens_of_unreadable_tokenizer_have_no_texts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert texts_of_tokens(tmp_path)([1, 2]) == texts_of_tokens(tmp_path / "nowhere")([1]) == []


def test_token_text_keeps_its_leading_white_space() -> None:
    ids = Tokenizer.from_folder(BUILT_IN["demo"]).encode("3 + 8 = 3 → 11.", goes_on=True)
    assert "".join(texts_of_tokens(BUILT_IN["demo"])(ids)) == "3 + 8 = 3 → 11."


def test_step_reports_relay_traffic_since_the_previous_step() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    one = WeightsTaken(host=0, weights=WeightsId(0, 1), num_bytes=1_000, seconds=0.1, by="copy")
    for taken in (one, replace(one, host=1, by="whole", seconds=0.5), replace(one, host=2, by="delta", num_bytes=10)):
        recorder.on_report(taken)
    for step in (1, 2):
        recorder.on_report(report(step))
    first, second = (body.metrics for body in sink.bodies if isinstance(body, StepTrained))
    assert (first["weights/bytes"], first["weights/slowest_relay_s"], first["weights/by_delta"]) == (1_010.0, 0.5, 0.5)
    assert "weights/bytes" not in second, "no weights were sent since"


def ends(*, trained: int, failed: int = 0) -> LedgerReported:
    return LedgerReported(counts={"trained": trained, "filtered": 0, "dropped_stale": 0, "failed": failed, "open": 5})


def of_samples(sink: MemorySink) -> list[dict[str, float]]:
    steps = [body.metrics for body in sink.bodies if isinstance(body, StepTrained)]
    return [{name: value for name, value in each.items() if name.startswith("samples/")} for each in steps]


def test_step_reports_sample_ends_since_the_previous_step() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    recorder.on_report(report(1))
    for step, ended in enumerate((ends(trained=32), ends(trained=64, failed=8), ends(trained=40, failed=8)), start=2):
        recorder.on_report(ended)
        recorder.on_report(report(step))
    before, *after = of_samples(sink)
    assert before == {}, "data has not reported yet"
    assert [(each["samples/trained"], each["samples/failed"]) for each in after] == [(32, 0), (32, 8), (0, 0)]
    assert set(after[0]) == {f"samples/{end}" for end in ("trained", "filtered", "dropped_stale", "failed")}


def test_step_reports_failures_since_the_previous_step() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=50)
    counts = FailureCounts(num_samples=3, num_replacements=2, num_short_groups=1)
    later = counts.add(samples=4, groups=1)
    recorder.on_report(report(51))
    for step, failures in ((52, counts), (53, later), (54, later)):
        recorder.on_report(replace(ends(trained=32), failures=failures))
        recorder.on_report(report(step))
    steps = [body.metrics for body in sink.bodies if isinstance(body, StepTrained)]
    names = ("samples", "replacements", "short_groups", "groups")
    assert not any(name.startswith("failures/") for name in steps[0]), "data has not reported yet"
    assert [[each[f"failures/{name}"] for name in names] for each in steps[1:]] == [
        [3, 2, 1, 0],
        [4, 0, 0, 1],
        [0, 0, 0, 0],
    ]


def test_resumed_attempt_counts_only_its_own_samples() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=50)
    for step, trained in ((51, 1_632), (52, 1_664)):
        recorder.on_report(ends(trained=trained))
        recorder.on_report(report(step))
    before, after = of_samples(sink)
    assert before == {}
    assert after["samples/trained"] == 32


def test_step_reports_sample_counts_from_datas_last_report() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    recorder.on_report(report(1))
    recorder.on_report(ends(trained=32, failed=8))
    recorder.on_report(report(2))
    first, second = (body.ledger for body in sink.bodies if isinstance(body, StepTrained))
    assert first == {}, "data has not reported yet"
    assert second == {"trained": 32, "filtered": 0, "dropped_stale": 0, "failed": 8, "open": 5}


def test_dropped_sample_is_reported_with_end_and_reason() -> None:
    sink = MemorySink()
    late = Failure(kind="timeout", reason="no answer")
    key = SampleKey(group=GroupKey(ordinal=7), sample=1)
    silent = Trajectory(key=key, weights=WeightsId(0, 2), reward=0.0, num_tokens=0, failure=late)
    read = ReadTrajectory(trajectory=silent, staleness=0, advantage=0.0, group_size=4, end="failed", reason="too late")
    Recorder(sink, start_step=0).on_report(SamplesEnded(step=3, to_read=(read,)))
    [fact] = [body for body in sink.bodies if isinstance(body, TrajectoriesSampled)]
    [sample] = fact.trajectories
    assert (fact.step, sample.end, sample.reason, sample.outcome) == (3, "failed", "too late", "timeout")
    assert (sample.response, sample.trace, sample.group_size) == ("", None, 4)


def test_announcements_of_the_driver_become_facts() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    recorder.announce(EnterPhase(phase="training"))
    recorder.announce(AnnounceReady(num_replicas=2, num_parameters=9))
    recorder.announce(AnnounceSize(replicas=1))
    recorder.announce(Acknowledge(request_id="r"))
    assert sink.bodies == [
        PhaseChanged(phase="training"),
        PipelineReady(num_replicas=2, num_parameters=9),
        ReplicasResized(replicas=1),
        RequestAcknowledged(request_id="r"),
    ]


def test_bad_settings_and_job_ids_outside_the_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="LAMINAR_STORE_DIR"):
        Settings.from_environment({})
    with pytest.raises(ValueError, match="LAMINAR_STORE_DIR"):
        Settings.from_environment({"LAMINAR_STORE_DIR": "relative"})
    settings = Settings.from_environment({"LAMINAR_STORE_DIR": str(tmp_path)})
    assert settings.attempt_folder(job="j1", attempt=2, fence=3) == tmp_path / "jobs" / "j1" / "attempt-2-fence-3"
    for job in ("../x", "a/b", "..", ""):
        with pytest.raises(ValueError, match="job:"):
            settings.attempt_folder(job=job, attempt=1, fence=1)


def test_fact_of_an_evaluation_carries_both_means_with_errors() -> None:
    report = EvaluationReported(
        weights=WeightsId(0, 3), num_prompts=9, num_samples=4, reward_mean=0.5, reward_std=0.3, reward_error=0.1,
        pass_rate=0.75, pass_error=0.15, length_mean=8.0,
    )  # fmt: skip
    assert evaluated(report) == Evaluated(
        version=3, num_prompts=9, num_samples=4, reward_mean=0.5, reward_std=0.3, reward_error=0.1,
        pass_rate=0.75, pass_error=0.15, length_mean=8.0,
    )  # fmt: skip


def test_repeated_result_is_one_fact() -> None:
    report = EvaluationReported(
        weights=WeightsId(0, 3), num_prompts=4, reward_mean=0.5, reward_std=0.25, length_mean=8.0
    )  # fmt: skip
    sink = MemorySink()
    recorder = Recorder(sink, start_step=3)
    for _ in range(2):
        recorder.on_report(report)
    [fact] = [body for body in sink.bodies if isinstance(body, Evaluated)]
    assert (fact.reward_mean, fact.reward_std) == (0.5, 0.25)


def test_repeated_answer_count_is_one_fact() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=3)
    for count in (3, 3, 4):
        recorder.on_report(AnswersCounted(version=3, num_answered=count, num_prompts=6))
    counts = [body for body in sink.bodies if isinstance(body, PromptsAnswered)]
    assert [(body.num_answered, body.num_prompts) for body in counts] == [(3, 6), (4, 6)]
