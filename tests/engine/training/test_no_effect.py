"""A setting listed as without effect in a job has none: the weights after some steps are the same bit for bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.policy.schedule import schedule_for
from engine.spec.job import JobSpec
from engine.spec.settings.conditional import without_effect
from engine.training.factory import build_trainer
from tests.engine.conftest import MakeLlama
from tests.engine.spec.settings.test_conditional_settings import NOWHERE, SOMEWHERE, with_value
from tests.engine.training.trainer_conformance import hash_of, settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_STEPS = 2
OF_THE_TRAINER = [
    (path, value, acts)
    for path, value, acts in SOMEWHERE
    if path.startswith(("algorithm.", "optimizer.", "trainer."))
    # settings of deepspeed, a teacher or a GPU are tested with these
    and path not in ("optimizer.moments", "optimizer.offload", "algorithm.overlong_tokens")
]


def trained(folder: Path, job: dict[str, Any]) -> str:
    spec = JobSpec.accepted({"name": "t", **job})
    training = spec.training
    given = settings(
        algorithm=spec.algorithm,
        optimizer=spec.optimizer,
        trainer=spec.trainer,
        mini_batches=training.mini_batches,
        passes=training.passes,
        num_steps=training.steps,
    )
    trainer = build_trainer(folder, given, device="cpu")
    for step in range(NUM_STEPS):
        trainer.train_step(trajectories_of(step, staleness=step))
    return hash_of(trainer)


@pytest.mark.parametrize(("path", "value", "acts"), OF_THE_TRAINER, ids=[path for path, *_ in OF_THE_TRAINER])
def test_setting_without_effect_changes_no_weight(
    path: str, value: object, acts: dict[str, Any] | None, make_llama: MakeLlama
) -> None:
    job: dict[str, Any] = NOWHERE.get(path, {})
    assert path in without_effect(JobSpec.accepted({"name": "t", **job}))
    assert trained(make_llama(), with_value(job, path, value)) == trained(make_llama(), job)


@pytest.mark.parametrize("path", ["algorithm.clip_low", "algorithm.kl.estimator", "algorithm.critic.gamma"])
def test_setting_with_effect_changes_weights(path: str, make_llama: MakeLlama) -> None:
    [(value, acts)] = [(value, acts) for each, value, acts in SOMEWHERE if each == path]
    assert acts is not None
    assert trained(make_llama(), with_value(acts, path, value)) != trained(make_llama(), acts)


WINDOWS = ("sync", "one_step", "stream")


@pytest.mark.parametrize(
    ("path", "others"),
    [
        ("schedule.lead_steps", WINDOWS),
        ("schedule.repack", (*WINDOWS, "bounded", "partial", "inflight")),
        ("rollout.weight_slots", (*WINDOWS, "bounded", "partial", "inflight", "paper")),
    ],
)
def test_setting_of_some_schedules_does_not_change_others(path: str, others: Sequence[str]) -> None:
    value = next(value for each, value, _ in SOMEWHERE if each == path)
    for name in others:
        specs = [{"name": "t", "schedule": {"name": name}}]
        specs.append(with_value(specs[0], path, value))
        plain, changed = map(JobSpec.accepted, specs)
        assert path in without_effect(plain)
        assert schedule_for(plain.schedule, weight_slots=plain.rollout.weight_slots or 2) == schedule_for(
            changed.schedule, weight_slots=changed.rollout.weight_slots or 2
        )
