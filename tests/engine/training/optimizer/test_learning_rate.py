"""The learning rate schedule over a job."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engine.spec.job import OptimizerSpec
from engine.training.optimizer.learning_rate import share_of_rate
from tests.engine.training.trainer_conformance import settings

COURSES: list[dict[str, Any]] = [
    {"course": course, "warmup_steps": warmup_steps, "final_share": final_share}
    for course in ("cosine", "linear")
    for warmup_steps in (0, 1, 7, 39)
    for final_share in (0.0, 0.1, 0.9)
]


def shares(num_steps: int, **course: Any) -> list[float]:
    job = settings(optimizer=OptimizerSpec(**course), num_steps=num_steps)
    return [share_of_rate(job, num_updates) for num_updates in range(num_steps)]


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_rate_rises_over_warm_up_then_falls_every_step(course: dict[str, Any]) -> None:
    rates = shares(40, **course)
    highest = max(course["warmup_steps"], 1)
    assert rates[highest - 1] == 1.0
    assert all(before < after for before, after in pairwise(rates[:highest]))
    assert all(before > after for before, after in pairwise(rates[highest - 1 :]))


@pytest.mark.parametrize("course", COURSES, ids=str)
def test_rate_is_never_zero_and_ends_at_the_final_share(
    course: dict[str, Any],
) -> None:
    assert min(shares(40, **course)) > 0.0 and shares(40, **course)[-1] > course["final_share"]
    job = settings(optimizer=OptimizerSpec(**course), num_steps=40)
    assert share_of_rate(job, 40) == share_of_rate(job, 1_000) == course["final_share"]


def test_cosine_and_linear_meet_halfway_and_cosine_starts_slower() -> None:
    cosine, linear = (shares(20, course=course, warmup_steps=1, final_share=0.2) for course in ("cosine", "linear"))
    assert cosine[10] == pytest.approx(0.6) and linear[10] == pytest.approx(0.6)
    assert all(slow > even for slow, even in zip(cosine[1:10], linear[1:10], strict=True))


def test_constant_rate_does_not_depend_on_num_steps() -> None:
    assert shares(6, warmup_steps=3) == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0])
    assert shares(2, warmup_steps=4) == [0.25, 0.5]


def test_resumed_job_with_more_steps_follows_its_own_schedule() -> None:
    short = settings(optimizer=OptimizerSpec(course="linear"), num_steps=50)
    longer = replace(short, num_steps=100)
    assert share_of_rate(longer, 50) == shares(100, course="linear")[50] > share_of_rate(short, 49)
