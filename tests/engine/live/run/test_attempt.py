"""An attempt before its run starts: requests end it, and its last fact holds the outcome."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from engine.live.process.interruptions import Fenced
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.policy.placement import NoSandbox
from engine.sinks.lines import TakenLines
from engine.sinks.memory import MemorySink
from engine.spec.control import ControlRequest
from engine.spec.facts import LogLine, LogLines, RunFinished
from engine.spec.job import JobSpec, ModelSpec
from tests.engine.models.families.test_agreement import whole

SPEC = JobSpec(name="an attempt")
TRACEBACK = TakenLines(
    component="environment",
    lines=(LogLine(at=datetime(2026, 1, 1, tzinfo=UTC), level="error", message="ZeroDivisionError"),),
    num_dropped=0,
)


def attempt(folder: Path, sink: MemorySink, *requests: ControlRequest, resume_from: str | None = None) -> Attempt:
    """`requests` arrive at the attempt's second check."""
    plan = AttemptPlan(spec=SPEC, checkpoints=folder / "checkpoints", resume_from=resume_from)
    looks = iter([[], [*requests]])
    return Attempt(plan, sink, lambda: next(looks, []))


def breaks_off(made: Attempt, error: Exception) -> Callable[[], None]:
    """A connect to Ray that fails while log lines of a part are not reported yet."""

    def connect() -> None:
        assert made._recorder is not None
        made._recorder.on_lines(TRACEBACK)
        raise error

    return connect


def test_last_logs_precede_the_last_fact_after_any_end(tmp_path: Path) -> None:
    sink = MemorySink()
    made = attempt(tmp_path, sink)
    finished = made.run(breaks_off(made, ConnectionError("no Ray")))
    assert (finished.outcome, finished.failure_class) == ("failed", "infrastructure")
    assert [type(body) for body in sink.bodies[-2:]] == [LogLines, RunFinished]
    assert isinstance(logs := sink.bodies[-2], LogLines) and logs.lines == [*TRACEBACK.lines]


def test_hosts_without_a_sandbox_fail_as_infrastructure(tmp_path: Path) -> None:
    made = attempt(tmp_path, MemorySink())
    finished = made.run(breaks_off(made, NoSandbox("it starts on none of the hosts: a, b")))
    assert (finished.failure_class, finished.message) == ("infrastructure", "it starts on none of the hosts: a, b")


def test_fenced_off_attempt_records_nothing_more(tmp_path: Path) -> None:
    sink = MemorySink()
    made = attempt(tmp_path, sink)
    with pytest.raises(Fenced):
        made.run(breaks_off(made, Fenced("fence 2 runs")))
    assert not {LogLines, RunFinished} & {type(body) for body in sink.bodies}


@pytest.fixture
def unreadable(tmp_path: Path) -> Any:
    """A checkpoint on a hanging disk: reading its manifest blocks."""
    folder = tmp_path / "step-000001"
    folder.mkdir()
    os.mkfifo(folder / "manifest.json")
    yield folder
    os.close(os.open(folder / "manifest.json", os.O_RDWR))  # unblocks the readers


@pytest.mark.parametrize(("kind", "outcome"), [("cancel", "cancelled"), ("pause", "paused")])
def test_request_is_obeyed_while_the_checkpoint_is_fetched(
    kind: Any, outcome: str, unreadable: Path, tmp_path: Path
) -> None:
    sink = MemorySink()
    made = attempt(tmp_path, sink, ControlRequest(id="r1", kind=kind), resume_from=str(unreadable))
    assert made.run(lambda: None).outcome == outcome
    assert isinstance(sink.bodies[-1], RunFinished)


def test_unverified_checkpoint_fails_as_data(tmp_path: Path) -> None:
    finished = attempt(tmp_path, MemorySink(), resume_from=str(tmp_path / "none")).run(lambda: None)
    assert (finished.outcome, finished.failure_class) == ("failed", "data")


@pytest.mark.long
def test_inconsistent_model_ends_the_attempt_before_placement(tmp_path: Path) -> None:
    folder = whole(tmp_path / "model", "llama")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "w7"}')
    spec = SPEC.model_copy(update={"model": ModelSpec(source=str(folder))})
    made = Attempt(AttemptPlan(spec=spec, checkpoints=tmp_path / "checkpoints"), MemorySink())
    connected: list[str] = []
    finished = made.run(lambda: connected.append("to Ray"))
    assert (finished.outcome, finished.failure_class) == ("failed", "config")
    assert "eos_token must be one of the end tokens of" in finished.message
    assert not connected
