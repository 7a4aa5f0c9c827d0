"""What leaves the engine is finite, printable and of the shape that the control plane accepts."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.live.facts.from_reports import finite, printable, step_trained, trajectories_sampled
from engine.live.facts.recorder import Recorder
from engine.live.process.settings import Settings
from engine.pipeline.effects import Acknowledge, AnnounceReady, AnnounceSize, EnterPhase
from engine.pipeline.messages.to_driver import (
    ReadTrajectory,
    StepReported,
    WeightsTaken,
)
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import GroupKey, SampleKey, Trajectory, TrajectoryContent
from engine.policy.lineage import WeightsId
from engine.sinks.memory import MemorySink
from engine.spec.facts import PhaseChanged, PipelineReady, ReplicasResized, RequestAcknowledged, StepTrained


def report(step: int = 1, **metrics: float) -> StepReported:
    return StepReported(step=step, metrics={"reward/mean": 0.5, **metrics}, to_read=())


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    assert finite({"a": 1.0, "b": float("nan"), "c": float("inf")}) == {"a": 1.0, "train/nonfinite_metrics": 2.0}
    assert step_trained(report(loss=float("nan")), {}).metrics["train/nonfinite_metrics"] == 1.0


def test_text_by_a_model_is_made_printable_and_short() -> None:
    assert printable("a\x00b\x1b[0m\ud800\ttab\nline") == "a\ufffdb\ufffd[0m\ufffd\ttab\nline"
    assert len(printable("x" * 50_000)) < 20_010


def test_a_hostile_response_becomes_a_fact() -> None:
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
    [sampled] = trajectories_sampled(StepReported(step=1, metrics={}, to_read=(read,)))
    assert sampled.trajectories[0].response == "\ufffd"


def test_a_step_says_what_travelled_among_relays_since_the_one_before() -> None:
    sink = MemorySink()
    recorder = Recorder(sink, start_step=0)
    one = WeightsTaken(host=0, weights=WeightsId(0, 1), num_bytes=1_000, seconds=0.1, by="copy")
    for taken in (one, replace(one, host=1, by="whole", seconds=0.5), replace(one, host=2, by="delta", num_bytes=10)):
        recorder.on_report(taken)
    for step in (1, 2):
        recorder.on_report(report(step))
    first, second = (body.metrics for body in sink.bodies if isinstance(body, StepTrained))
    assert (first["weights/bytes"], first["weights/slowest_relay_s"], first["weights/by_delta"]) == (1_010.0, 0.5, 0.5)
    assert "weights/bytes" not in second, "nothing has travelled since"


def test_what_the_driver_announces_becomes_a_fact() -> None:
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


def test_settings_fail_loudly_and_a_jobs_id_is_no_way_out_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="LAMINAR_STORE_DIR"):
        Settings.from_environment({})
    with pytest.raises(ValueError, match="LAMINAR_STORE_DIR"):
        Settings.from_environment({"LAMINAR_STORE_DIR": "relative"})
    settings = Settings.from_environment({"LAMINAR_STORE_DIR": str(tmp_path)})
    assert settings.attempt_folder(job="j1", attempt=2, fence=3) == tmp_path / "jobs" / "j1" / "attempt-2-fence-3"
    for job in ("../x", "a/b", "..", ""):
        with pytest.raises(ValueError, match="job:"):
            settings.attempt_folder(job=job, attempt=1, fence=1)
