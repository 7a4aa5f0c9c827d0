"""The rules of the verdict, each by what it is made for and by what it must not take for it."""

from dataclasses import replace
from typing import Any

import pytest

from backend.verdicts.rules.finding import Kind
from backend.verdicts.rules.judging import judge
from backend.verdicts.rules.observed import FEWEST
from tests.verdict.runs_of_numbers import STEPS, kinds_of, rising, run_of

FLAT = rising(0.4, 0.4)
LATE = STEPS - 15


def later(first: float, then: float) -> list[float]:
    """One value for the first steps, another one since."""
    return [first if at < LATE else then for at in range(STEPS)]


SICK: list[tuple[Kind, dict[str, Any]]] = [
    ("environment", {"samples/failed": 9.0, "samples/trained": 27.0}),
    ("untrusted", {"reward/untrusted": 0.3}),
    ("mismatch", {"train/logprob_gap_p90": 0.4}),
    ("collapsing", {"train/skipped": later(0.0, 1.0)}),
    ("collapsing", {"length/cut_fraction": later(0.05, 0.95)}),
    ("collapsing", {"length/mean": later(20.0, 3.0)}),
    ("collapsing", {"train/entropy": later(0.8, 4.0), "reward/mean": FLAT}),
    ("collapsing", {"train/entropy": later(0.8, 0.01), "reward/mean": FLAT}),
    ("collapsing", {"reward/mean": [*rising(0.6, 0.6, LATE), *rising(0.1, 0.1, STEPS - LATE)]}),
    ("stuck", {"reward/groups_without_signal": 1.0, "reward/mean": 0.0, "reward/max": 0.0}),
    ("stuck", {"samples/filtered": 400.0, "reward/mean": FLAT}),
    ("stale", {"samples/dropped_stale": 20.0}),
]


@pytest.mark.parametrize(("kind", "series"), SICK, ids=[f"{kind}-{min(series)}" for kind, series in SICK])
def test_a_sickness_is_named_with_its_chart_and_its_remedy(kind: Kind, series: dict[str, Any]) -> None:
    found = judge(run_of(series))[0]
    assert found.kind == kind
    assert found.is_alarm
    assert found.evidence
    assert found.sentence.endswith(".")
    assert found.remedy.endswith(".")


def test_stalled_is_told_apart_from_long_steps() -> None:
    assert kinds_of(run_of(silent_s=400.0)) == ["stalled"]
    assert kinds_of(run_of(silent_s=200.0)) == ["learning"]
    assert kinds_of(run_of({"trainer/step_s": 600.0}, silent_s=400.0)) == ["learning"]
    assert kinds_of(run_of(is_driver_still=True)) == ["stalled"]


def test_what_waits_begins_or_is_over_is_not_stalled() -> None:
    assert kinds_of(run_of(silent_s=9_999.0, is_training=False)) == ["learning"]
    assert kinds_of(run_of(silent_s=9_999.0, is_training=False, is_over=True)) == ["learning"]
    assert judge(run_of(num_steps=0, silent_s=400.0))[0].kind == "early", "the first step may take an hour"


def test_no_alarm_is_made_of_the_first_steps() -> None:
    for kind, series in SICK:
        at_its_worst = {name: values if isinstance(values, float) else values[-1] for name, values in series.items()}
        assert kinds_of(run_of(at_its_worst, num_steps=FEWEST - 1)) == ["early"], kind


def test_mismatch_is_found_in_few_fresh_steps() -> None:
    """Most steps of a stale run have neither a gap nor a bound."""
    run, seldom = run_of({"train/logprob_gap_p90": 0.4}), ("train/logprob_gap_p90", "train/logprob_gap_bound")
    fresh = {name: run.recent[name][::5] for name in seldom}
    assert len(fresh["train/logprob_gap_bound"]) < FEWEST
    assert "mismatch" in kinds_of(replace(run, recent={**run.recent, **fresh}))


def test_groups_that_agree_on_right_answers_are_solved() -> None:
    solved = judge(run_of({"reward/groups_without_signal": 0.95, "reward/mean": rising(0.97, 0.97)}))[0]
    assert (solved.kind, solved.tone) == ("solved", "good")


def test_model_growing_certain_by_learning_is_no_collapse() -> None:
    assert kinds_of(run_of({"train/entropy": later(0.8, 0.03)})) == ["learning"]


def test_answers_that_were_always_cut_did_not_collapse() -> None:
    assert kinds_of(run_of({"length/cut_fraction": 0.95})) == ["learning"]


def test_reward_flat_for_half_a_long_run_is_a_plateau() -> None:
    flat = [*rising(0.1, 0.6, 60), *rising(0.6, 0.6, 100)]
    found = judge(run_of({"reward/mean": flat}, num_steps=160))[0]
    assert (found.kind, found.tone) == ("plateau", "notice")
    assert found.since_step is not None
    assert 50 <= found.since_step <= 75
    assert kinds_of(run_of({"reward/mean": FLAT})) == ["early"], "too short to call it flat"
    assert kinds_of(run_of({"reward/mean": rising(0.1, 0.6, 160)}, num_steps=160)) == ["learning"]


def test_rewards_below_zero_are_judged_by_their_own_scale() -> None:
    rewards: dict[str, Any] = {"reward/min": -40.0, "reward/max": -1.0, "reward/mean": rising(-30.0, -18.0)}
    assert kinds_of(run_of(rewards)) == ["learning"]


def test_speed_advice_follows_only_in_healthy_runs() -> None:
    assert kinds_of(run_of({"trainer/wait_fraction": 0.95})) == ["learning", "starved_trainer"]
    assert kinds_of(run_of({"rollout/time_idle": 0.8})) == ["learning", "starved_rollouts"]
    assert kinds_of(run_of({"trainer/wait_fraction": 0.95, "reward/untrusted": 0.5})) == ["untrusted"]


def test_conversations_read_anew_each_turn_are_a_notice() -> None:
    found = judge(run_of({"length/segments": 6.0}))[1]
    assert (found.kind, found.tone) == ("retold", "notice")
    assert "6 times" in found.sentence and "model.history" in found.remedy
    assert kinds_of(run_of({"length/segments": 1.2})) == ["learning"]


def test_no_speed_advice_if_generation_dominates_or_both_idle() -> None:
    assert kinds_of(run_of({"trainer/wait_fraction": 0.8})) == ["learning"]
    assert kinds_of(run_of({"trainer/wait_fraction": 0.95, "rollout/time_idle": 0.9})) == ["learning"]


def test_a_slow_environment_is_told_apart_from_too_few_replicas() -> None:
    few = judge(run_of({"trainer/wait_fraction": 0.95}))[1]
    slow = judge(run_of({"trainer/wait_fraction": 0.95, "rollout/time_environment": 0.8}))[1]
    assert "rollout.replicas" in few.remedy
    assert "tool" in slow.remedy


def test_more_fundamental_of_two_faults_comes_first() -> None:
    both = {"samples/dropped_stale": 20.0, "reward/untrusted": 0.5}
    assert kinds_of(run_of(both)) == ["untrusted", "stale"]


@pytest.mark.parametrize(
    ("kind", "series", "edge"),
    [
        ("untrusted", "reward/untrusted", 0.08),
        ("stuck", "reward/groups_without_signal", 0.85),
        ("stale", "samples/dropped_stale", 6.0),
        ("environment", "samples/failed", 3.0),
    ],
)
def test_value_at_the_threshold_neither_raises_nor_ends_alarm(kind: Kind, series: str, edge: float) -> None:
    assert kind not in kinds_of(run_of({series: edge}))
    assert kind in kinds_of(run_of({series: edge}, alarms=[kind]))
    assert kind not in kinds_of(run_of(alarms=[kind])), "a run that is well again is"


def test_series_that_an_engine_does_not_send_are_no_sickness() -> None:
    run = run_of()
    for name in run.whole:
        rest = {each: line for each, line in run.whole.items() if each != name}
        found = judge(type(run)(recent=rest, whole=rest))
        assert not found[0].is_alarm, name
