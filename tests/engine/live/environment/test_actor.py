"""The environment's actor reports a thread that has ended, though it still answers the driver's polls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from engine.environments import registry
from engine.environments.port import Blame, GraderError
from engine.live.body.loop import BodyFailed
from engine.live.environment.actor import EnvironmentActor
from engine.live.environment.turns import Ask
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.records import GroupKey, SampleKey
from engine.spec.causes import PlatformCause
from engine.spec.job import JobSpec
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]

REPLICA = rollout_address(0)
ASK = Ask(by=REPLICA, key=SampleKey(group=GroupKey(ordinal=0), sample=0), prompt=None, turns=())


class Gone:
    """A replica that raises on every send."""

    @property
    def answer(self) -> Any:
        raise OSError("the object store is full")


def first_failure(actor: Any) -> BodyFailed:
    answers = (actor.collect(1.0, got) for got in range(120))
    return next(message for _, batch in answers for _, message in batch if isinstance(message, BodyFailed))


def fail_on_ask(actor: Any) -> None:
    actor.ask([None])


def fail_on_answer(actor: Any) -> None:
    actor.connect({REPLICA: Gone()})
    actor.ask([ASK])


@pytest.mark.parametrize("fault", [fail_on_ask, fail_on_answer])
def test_ended_thread_is_reported_to_the_driver(fault: Callable[[Any], None]) -> None:
    actor: Any = EnvironmentActor(spec=JobSpec(name="x"), worker=0, data_folder=None)
    fault(actor)
    assert "environment" in first_failure(actor).message


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
    failure = first_failure(actor)
    assert (failure.failure_class, failure.cause) == ("infrastructure", PlatformCause.NO_SANDBOX)
    assert "namespace" in failure.message


@pytest.mark.parametrize("blame", get_args(Blame))
def test_start_that_fails_believes_the_errors_blame(blame: Blame, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise GraderError("the task needs too much memory", blame=blame)

    monkeypatch.setattr(registry, "make_environment", fail)
    failure = first_failure(EnvironmentActor(spec=JobSpec(name="x"), worker=0, data_folder=None))
    assert failure.failure_class == blame
    assert failure.cause == (PlatformCause.NO_SANDBOX if blame == "infrastructure" else None)


@pytest.mark.long
@pytest.mark.usefixtures("sandbox")
def test_task_parameters_that_allocate_are_a_config_failure() -> None:
    params = {"task": "chain_sum", "min_terms": 100_000_000, "max_terms": 100_000_000}
    spec = JobSpec.model_validate({"name": "x", "environment": {"name": "reasoning_gym", "params": params}})
    failure = first_failure(EnvironmentActor(spec=spec, worker=0, data_folder=None))
    assert failure.failure_class == "config" and "chain_sum does not accept" in failure.message
