"""The proof of the rules: runs of the real engine that are sick by their settings are named, healthy ones are not.

`python -m tests.verdict.record` makes the recordings that are missing; what is not recorded is not proved, and skipped
by name.
"""

import pytest

from tests.verdict.replaying import judged_as_told, last_step_at, place_of, sick_from
from tests.verdict.runs import RUNS, STALLED_WITHIN_S, WITHIN, Run

RECORDED = [run for run in RUNS if place_of(run).exists()]
HEALTHY = [run for run in RECORDED if not run.kind]
SICK = [run for run in RECORDED if run.kind]
PACE = {"starved_trainer", "starved_rollouts"}
WITH_A_SLOW_TOOL = {"slowest-of-all"}
"""By its settings: the tool takes two seconds, a step a tenth of one."""


def name_of(run: Run) -> str:
    return f"{run.name}-held-out" if run.is_held_out else run.name


@pytest.mark.parametrize("run", HEALTHY, ids=name_of)
def test_no_alarm_is_raised_in_a_healthy_run(run: Run) -> None:
    assert not [(look.step, found.sentence) for look in judged_as_told(run) for found in look.found if found.is_alarm]


@pytest.mark.parametrize("run", HEALTHY, ids=name_of)
def test_healthy_run_gets_speed_advice_only_for_slow_tools(run: Run) -> None:
    advised = {found.kind for look in judged_as_told(run) for found in look.found} & PACE
    assert advised == ({"starved_trainer"} if run.name in WITH_A_SLOW_TOOL else set())


@pytest.mark.parametrize("run", SICK, ids=name_of)
def test_a_sick_run_is_named_in_time(run: Run) -> None:
    named = next((look for look in judged_as_told(run) if look.names(run.kind)), None)
    assert named, [look.found[0].sentence for look in judged_as_told(run)][-1]
    assert named.step <= sick_from(run) + WITHIN[run.kind]
    if run.kind == "stalled":
        assert named.at_s <= STALLED_WITHIN_S + last_step_at(run)


@pytest.mark.parametrize("run", SICK, ids=name_of)
def test_an_alarm_of_a_sick_run_does_not_flap(run: Run) -> None:
    """Once named, it ends at most once and begins at most twice: the run may really have got well for a while."""
    active = [look.names(run.kind) for look in judged_as_told(run)]
    begins = sum(now and not before for before, now in zip([False, *active], active, strict=False))
    assert begins <= 2


def test_names_and_recordings_match() -> None:
    assert len({run.name for run in RUNS}) == len(RUNS)
    kept = {path.name for path in place_of(RUNS[0]).parent.glob("*")}
    assert kept == {place_of(run).name for run in RECORDED}
