"""Rewards paid by parts: a run that learns only the form is reported, and no run that learns its answers."""

from collections.abc import Sequence

import pytest

from backend.verdicts.rules.judging import judge
from tests.verdict.runs_of_numbers import STEPS, kinds_of, rising, run_of

FORM, ANSWER = "reward/part/form", "reward/part/answer"
FULL_FROM = 12


def full_by_then(first: float = 0.3) -> list[float]:
    climb = [first + (1.0 - first) * at / FULL_FROM for at in range(FULL_FROM)]
    return climb + [0.97 if at % 3 else 1.0 for at in range(STEPS - FULL_FROM)]


def flat(level: float) -> list[float]:
    return [max(0.0, each) for each in rising(level, level)]


def paid(form: Sequence[float], answer: Sequence[float]) -> dict[str, float | Sequence[float]]:
    reward = [0.3 * one + 0.7 * other for one, other in zip(form, answer, strict=True)]
    return {FORM: form, ANSWER: answer, "reward/mean": reward}


@pytest.mark.parametrize("level", [0.0, 0.1])
def test_learning_only_the_form_is_named_with_its_remedy(level: float) -> None:
    found = judge(run_of(paid(full_by_then(), flat(level))))[0]
    assert (found.kind, found.tone) == ("collapsing", "alarm")
    assert found.evidence == (FORM, ANSWER, "reward/mean")
    assert "“form” rose from" in found.sentence and "“answer” stays at" in found.sentence
    assert "Reward the format only if the answer is right too" in found.remedy


def test_no_part_is_known_by_its_name() -> None:
    series = paid(full_by_then(), flat(0.05))
    swapped = series | {ANSWER: series[FORM], FORM: series[ANSWER]}
    assert judge(run_of(swapped))[0].evidence[:2] == (ANSWER, FORM)


def test_form_that_is_learned_before_the_answer_is_learning() -> None:
    late = [0.0] * 20 + rising(0.05, 0.3, STEPS - 20)
    assert kinds_of(run_of(paid(full_by_then(), late))) == ["learning"]


def test_answers_right_before_the_form_are_not_missed() -> None:
    assert "collapsing" not in kinds_of(run_of(paid(full_by_then(), flat(0.7))))


def test_form_that_was_full_from_the_beginning_explains_nothing() -> None:
    assert "collapsing" not in kinds_of(run_of(paid([0.98] * STEPS, flat(0.05))))


def test_a_third_part_that_still_rises_is_learning() -> None:
    series = paid(full_by_then(), flat(0.05)) | {"reward/part/steps": rising(0.1, 0.6)}
    assert "collapsing" not in kinds_of(run_of(series))


def test_rising_reward_is_no_plateau() -> None:
    series = paid(full_by_then(), flat(0.05)) | {"reward/mean": rising(0.1, 0.6)}
    assert kinds_of(run_of(series)) == ["learning"]


def test_reward_without_gain_from_form_is_not_paid_for_it() -> None:
    series = paid(full_by_then(), flat(0.05)) | {"reward/mean": rising(0.2, 0.2)}
    assert "collapsing" not in kinds_of(run_of(series))


def test_a_form_that_is_full_since_a_few_steps_is_given_time() -> None:
    late = [*rising(0.2, 0.5, STEPS - 8), *([0.99] * 8)]
    assert "collapsing" not in kinds_of(run_of(paid(late, flat(0.05))))


def test_parts_beyond_the_scale_of_shares_say_nothing() -> None:
    series = paid(full_by_then(), flat(0.05))
    beyond = [40.0 * each for each in full_by_then()]
    assert "collapsing" not in kinds_of(run_of(series | {FORM: beyond}))


def test_a_form_that_slips_for_a_step_does_not_end_the_alarm() -> None:
    slipping = full_by_then()
    slipping[-3] = 0.8
    series = paid(slipping, flat(0.05))
    assert kinds_of(run_of(series, alarms=["collapsing"])) == ["collapsing"]
    assert "collapsing" not in kinds_of(run_of(series)), "nor would it begin one"
