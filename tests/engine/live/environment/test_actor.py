"""The environment's actor reports a thread that has ended, though it still answers the driver's polls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.live.body.loop import BodyFailed
from engine.live.environment.actor import EnvironmentActor
from engine.live.environment.turns import Ask
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.records import GroupKey, SampleKey
from engine.spec.job import JobSpec

REPLICA = rollout_address(0)
ASK = Ask(by=REPLICA, key=SampleKey(group=GroupKey(ordinal=0), sample=0), prompt=None, turns=())


class Gone:
    """A replica that raises on every send."""

    @property
    def answer(self) -> Any:
        raise OSError("the object store is full")


def fail_on_ask(actor: Any) -> None:
    actor.ask([None])


def fail_on_answer(actor: Any) -> None:
    actor.connect({REPLICA: Gone()})
    actor.ask([ASK])


@pytest.mark.parametrize("fault", [fail_on_ask, fail_on_answer])
def test_ended_thread_is_reported_to_the_driver(fault: Callable[[Any], None]) -> None:
    actor: Any = EnvironmentActor(spec=JobSpec(name="x"), worker=0, data_folder=None)
    fault(actor)
    answers = (actor.collect(1.0, got) for got in range(30))
    failures = (message for _, batch in answers for _, message in batch if isinstance(message, BodyFailed))
    assert "environment" in next(failures).message


@pytest.mark.parametrize(
    ("name", "code"),
    [("reasoning_gym", ""), ("custom", "def prompt(*_): return {'text': 'x'}\ndef respond(*_): pass")],
    ids=["reasoning_gym", "custom"],
)
def test_sandbox_that_does_not_start_is_infrastructure(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    spec = JobSpec.model_validate({"name": "x", "environment": {"name": name, "code": code}})
    actor: Any = EnvironmentActor(spec=spec, worker=0, data_folder=None)
    answers = (actor.collect(1.0, got) for got in range(30))
    failures = (message for _, batch in answers for _, message in batch if isinstance(message, BodyFailed))
    failure = next(failures)
    assert failure.failure_class == "infrastructure" and "namespace" in failure.message
