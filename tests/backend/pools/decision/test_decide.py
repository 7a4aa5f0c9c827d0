"""Which jobs start now, and why the others wait: the line, its order and its holds."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.pools.decision.decide import AGEING_PER_HOUR, BACKFILL_PATIENCE, decide, queue_order
from backend.pools.decision.views import PoolView, QueuedJobView, TeamView, WaitingReason
from tests.backend.pools.decision.decide_world import (
    MINUTE,
    NOW,
    TEAMS,
    World,
    check_decision,
    holder,
    job,
    pool,
    team,
    worlds,
)

R = WaitingReason


@given(worlds())
def test_no_overselling_and_each_job_admitted_or_has_one_reason(world: World) -> None:
    """Checked by the simulation itself, in each of its minutes."""
    check_decision(world.view(), decide(world.view()))


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_rows_were_read_does_not_matter(world: World, rng: random.Random) -> None:
    view = world.view()
    queued, holders = list(view.queued), list(view.holders)
    rng.shuffle(queued)
    rng.shuffle(holders)
    names = list(view.teams)
    rng.shuffle(names)
    turned = replace(view, queued=queued, holders=holders, teams={name: view.teams[name] for name in names})
    assert decide(turned) == decide(view)


@given(worlds())
def test_the_first_within_nominal_that_fits_is_admitted(world: World) -> None:
    view = world.view()
    for name in TEAMS:
        mine = queue_order([one for one in view.queued if one.team == name], view.now)
        if mine and not world.claims:
            room = min(view.teams[name].nominal - world.used(name), world.capacity - sum(map(world.used, TEAMS)))
            if mine[0].devices <= room:
                assert mine[0].id in decide(view).admitted


def test_each_reason_has_its_case() -> None:
    teams = {"ants": team(4), "bees": team(4)}
    full = [holder("runs", 4, preemptible=False), holder("theirs", 4, team="bees", preemptible=False)]
    assert decide(pool(job("a", 9), teams=teams)).reasons == {"a": R.EXCEEDS_MAX}
    assert decide(pool(job("a", 5, preemptible=False), teams=teams)).reasons == {"a": R.EXCEEDS_MAX}
    assert decide(pool(job("a", 1, team="without quota"))).reasons == {"a": R.EXCEEDS_MAX}
    assert decide(pool(job("a", 1, preemptible=False), teams=teams, holders=full)).reasons == {"a": R.TEAM_CEILING}
    assert decide(pool(job("a", 1), teams=teams, holders=full)).reasons == {"a": R.POOL_FULL}
    assert decide(pool(job("a", 1), is_open=False)).reasons == {"a": R.POOL_CLOSED}
    later = replace(job("a", 1), not_before=NOW + MINUTE)
    assert decide(pool(later)).reasons == {"a": R.BACKOFF_UNTIL}
    assert decide(replace(pool(later), now=NOW + MINUTE)).admitted == ("a",)


def test_a_job_starts_only_if_its_longest_run_can_be_paid() -> None:
    two = [job("a", 2), job("b", 2)]
    for budget, admitted in ((7_199, ()), (7_200, ("a",)), (14_400, ("a", "b"))):
        teams = {"ants": replace(team(8), budget_left=float(budget))}
        decision = decide(pool(*two, teams=teams))
        assert decision.admitted == admitted
        assert set(decision.reasons.values()) <= {R.BUDGET}


def test_job_over_budget_blocks_no_other() -> None:
    teams = {"ants": replace(team(8), budget_left=3_600.0)}
    decision = decide(pool(job("dear", 8, waited=timedelta(days=1)), job("cheap", 1), teams=teams))
    assert (decision.admitted, decision.reasons) == (("cheap",), {"dear": R.BUDGET})


def test_small_jobs_fill_the_gap_beside_a_big_one_for_a_while() -> None:
    big, small = job("big", 6, waited=BACKFILL_PATIENCE - MINUTE, preemptible=False), job("small", 2)
    view = pool(big, small, holders=[holder("runs", 3, preemptible=False)])
    decision = decide(view)
    assert (decision.admitted, decision.reasons) == (("small",), {"big": R.TEAM_CEILING})
    decision = decide(replace(view, now=NOW + MINUTE))
    assert decision.reasons == {"big": R.TEAM_CEILING, "small": R.BEHIND_PRIORITY}


def test_patient_borrower_holds_the_line_of_borrowers_only() -> None:
    teams = {"ants": team(0), "bees": team(0), "crabs": team(2)}
    runs = [holder("runs", 4, team="bees", ran=MINUTE)]
    big = job("big", 6, waited=BACKFILL_PATIENCE)
    decision = decide(pool(big, job("bee", 1, team="bees"), job("crab", 1, team="crabs"), teams=teams, holders=runs))
    assert decision.admitted == ("crab",)
    assert decision.reasons == {"big": R.POOL_FULL, "bee": R.BACKFILL_HOLD}


def test_waiting_borrower_does_not_block_its_teams_own_quota() -> None:
    teams = {"ants": team(4), "bees": team(4)}
    theirs = [holder("theirs", 4, team="bees", preemptible=False)]
    wide, narrow = job("wide", 8, waited=timedelta(days=2)), job("narrow", 2)
    decision = decide(pool(wide, narrow, teams=teams, holders=theirs))
    assert (decision.admitted, decision.reasons) == (("narrow",), {"wide": R.POOL_FULL})


def test_impossible_job_blocks_no_other() -> None:
    decision = decide(pool(job("huge", 99, waited=timedelta(days=9)), job("small", 1)))
    assert decision.admitted == ("small",)


def test_priority_goes_first_within_a_team_until_age_outdoes_it() -> None:
    urgent = job("urgent", 8, priority=10, preemptible=False)
    for waited, first in ((timedelta(0), "urgent"), (timedelta(hours=10 / AGEING_PER_HOUR), "old")):
        old = job("old", 8, waited=waited, preemptible=False)
        assert decide(pool(urgent, old)).admitted == (first,)


def test_age_outdoes_any_priority_in_the_end() -> None:
    oldest = job("oldest", 1, priority=-100, waited=timedelta(hours=200 / AGEING_PER_HOUR))
    assert queue_order([job("newest", 1, priority=100), oldest], NOW)[0].id == "oldest"


def test_least_borrowing_then_least_history_goes_first() -> None:
    teams = {"ants": team(0), "bees": team(0), "crabs": team(8)}
    line = [job("a", 4, waited=MINUTE), job("b", 4, team="bees")]
    borrowing = [holder("runs", 2, ran=MINUTE)]
    assert decide(pool(*line, teams=teams, holders=borrowing)).admitted == ("b",)
    assert decide(pool(*line, teams=teams, holders=[holder("x", 2, team="bees", ran=MINUTE)])).admitted == ("a",)
    heavy = teams | {"ants": replace(teams["ants"], usage=9.0)}
    free = [holder("hers", 2, team="crabs", preemptible=False)]
    assert decide(pool(*line, teams=heavy, holders=free, capacity=8)).admitted == ("b",)


def test_weights_divide_what_is_lent() -> None:
    teams = {"ants": replace(team(0), weight=3.0), "bees": team(0), "crabs": team(8)}
    line = [job(f"{name}{n}", 1, team=name) for name in ("ants", "bees") for n in range(8)]
    admitted = decide(pool(*line, teams=teams)).admitted
    assert sum(name.startswith("ants") for name in admitted) == 6


def test_burst_of_submissions_does_not_block_another_team() -> None:
    teams = {"ants": team(4), "bees": team(4)}
    line = [job(f"a{n:02}", 1, waited=2 * MINUTE) for n in range(50)] + [job("b", 1, team="bees")]
    assert "b" in decide(pool(*line, teams=teams, capacity=8)).admitted


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 8),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20), st.sampled_from(TEAMS)), min_size=5, max_size=30),
    st.sampled_from([{"ants": team(8)}, dict.fromkeys(TEAMS, team(0))]),
    st.booleans(),
)
def test_a_big_job_starts_however_many_small_ones_keep_coming(
    big: int,
    arrivals: int,
    smalls: list[tuple[int, int, str]],
    quotas: dict[str, TeamView],
    preemptible: bool,
) -> None:
    """At least one new job a minute. The pool is full when the big job arrives; small ones (devices, minutes, team)
    never stop. Once the big job's team owns the whole pool by quota, once all teams only borrow."""
    teams = dict.fromkeys(TEAMS, team(0)) | quotas
    preemptible = preemptible or teams["ants"].nominal == 0
    world = World(capacity=8, teams=teams)
    longest = max(minutes for _, minutes, _ in smalls)
    filling = replace(job("filling", 8, team="bees"), max_runtime_s=longest * 60.0)
    world.submit(filling)
    world.minute()
    assert "filling" in world.started
    world.submit(replace(job("big", big, preemptible=preemptible), max_runtime_s=60.0))
    # One patience before the line is held, one run of earlier starts, and once more if others were first.
    for minute in range(4 * (longest + int(BACKFILL_PATIENCE / MINUTE)) + 10):
        for n in range(minute * arrivals, (minute + 1) * arrivals):
            devices, minutes, name = smalls[n % len(smalls)]
            small = QueuedJobView(id=f"s{n}", team=name, devices=devices, queued_at=NOW, preemptible=True)
            world.submit(replace(small, max_runtime_s=minutes * 60.0))
        world.minute()
        if "big" in world.started:
            return
    raise AssertionError("the big job starved")


def test_a_line_of_ten_thousand_is_judged_whole() -> None:
    teams = {f"team-{n}": team(2) for n in range(20)}
    line = [job(f"j{n}", 1 + n % 7, team=f"team-{n % 20}", waited=n * timedelta(seconds=1)) for n in range(10_000)]
    view = PoolView(capacity=40, teams=teams, queued=line, now=NOW)
    decision = decide(view)
    assert len(decision.reasons) + len(decision.admissions) == 10_000


@pytest.mark.parametrize("devices", [1, 8])
def test_an_empty_pool_starts_what_fits(devices: int) -> None:
    assert decide(pool(job("a", devices))).admitted == ("a",)
