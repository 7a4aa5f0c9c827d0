"""Borrowing, lending, reclaiming: the quota rule and its guarantee."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.pools.decision.decide import decide
from backend.pools.decision.victims import MIN_RUNTIME
from backend.pools.decision.views import TeamView, WaitingReason
from tests.backend.pools.decision.decide_world import MINUTE, TEAMS, World, holder, job, pool, quotas, team, worlds

R = WaitingReason
HALVES = {"ants": team(4), "bees": team(4)}


def test_preemptible_jobs_borrow_unused_devices() -> None:
    assert decide(pool(job("a", 8), teams=HALVES)).admissions[0].borrowed == 4
    assert decide(pool(job("a", 8, preemptible=False), teams=HALVES)).reasons == {"a": R.EXCEEDS_MAX}


def test_nothing_firm_runs_on_borrowed_devices() -> None:
    firm = [holder("firm", 3, preemptible=False)]
    line = [job("second", 2, preemptible=False)]
    assert decide(pool(*line, teams=HALVES, holders=firm)).reasons == {"second": R.TEAM_CEILING}
    soft = [holder("soft", 3)]
    assert decide(pool(*line, teams=HALVES, holders=soft)).admitted == ("second",)


def test_a_team_borrows_no_more_than_its_limit() -> None:
    teams = HALVES | {"ants": team(4, borrow=2)}
    runs = [holder("runs", 4)]
    assert decide(pool(job("a", 2), teams=teams, holders=runs)).admitted == ("a",)
    assert decide(pool(job("a", 3), teams=teams, holders=runs)).reasons == {"a": R.TEAM_CEILING}
    assert decide(pool(job("a", 7), teams=teams)).reasons == {"a": R.EXCEEDS_MAX}


def test_a_fence_keeps_what_is_not_lent_for_its_team() -> None:
    teams = HALVES | {"bees": team(4, lend=1)}
    assert decide(pool(job("a", 5), teams=teams)).admitted == ("a",)
    runs = [holder("runs", 4)]
    assert decide(pool(job("a", 2), teams=teams, holders=runs)).reasons == {"a": R.RESERVED_BY_OTHERS}
    assert decide(pool(job("a", 6), teams=teams)).reasons == {"a": R.EXCEEDS_MAX}
    assert decide(pool(job("b", 3, team="bees"), teams=teams, holders=[holder("runs", 5)])).admitted == ("b",)


@settings(deadline=None)
@given(worlds(), st.sampled_from(TEAMS), st.integers(1, 12), st.booleans())
def test_team_gets_its_nominal_quota_after_one_reclaim_round(
    world: World, name: str, devices: int, preemptible: bool
) -> None:
    """I12. Whatever the others hold: two minutes after preemptible jobs have had their minimum runtime."""
    for job_id in list(world.queued):  # its own team's line is the team's own affair
        if world.jobs[job_id].team == name:
            del world.queued[job_id]
    world.claims = {job_id: kept for job_id, kept in world.claims.items() if job_id in world.queued}
    world.now += MIN_RUNTIME
    world.minute()  # leaving jobs are gone
    if world.used(name) + devices > world.teams[name].nominal:
        return
    world.submit(job("mine", devices, team=name, preemptible=preemptible))
    for _ in range(int(MIN_RUNTIME / MINUTE) + 3):
        world.minute()
        if "mine" in world.started:
            return
    raise AssertionError("the guarantee was broken")


@pytest.mark.long
@settings(deadline=None)
@given(
    quotas(8),
    st.lists(st.tuples(st.sampled_from(TEAMS), st.integers(1, 8)), min_size=1, max_size=8),
)
def test_two_teams_never_take_from_each_other_in_turn(
    teams: dict[str, TeamView], wanted: list[tuple[str, int]]
) -> None:
    """All jobs run forever and are preemptible: preemption still comes to an end."""
    world = World(capacity=8, teams=teams)
    for number, (name, devices) in enumerate(wanted):
        endless = replace(job(f"j{number}", devices, team=name), max_runtime_s=1e9)
        world.submit(endless)
        for _ in range(int(MIN_RUNTIME / MINUTE) + 2):
            world.minute()
    for _ in range(6):
        world.now += MIN_RUNTIME
        world.minute()
        world.minute()
    taken = len(world.paused)
    for _ in range(6):
        world.now += MIN_RUNTIME
        world.minute()
        world.minute()
    assert len(world.paused) == taken


def test_devices_within_nominal_are_not_taken() -> None:
    within = [holder("theirs", 4, team="bees")]
    decision = decide(pool(job("a", 5), job("a2", 5), teams=HALVES, holders=within))
    assert not decision.preemptions and decision.reasons == {"a": R.POOL_FULL, "a2": R.POOL_FULL}


def test_what_was_just_started_is_let_be_for_a_while() -> None:
    for ran, victims in ((MIN_RUNTIME - timedelta(seconds=1), []), (MIN_RUNTIME, ["theirs"])):
        borrowed = [holder("theirs", 8, team="bees", ran=ran)]
        decision = decide(pool(job("a", 4), teams=HALVES, holders=borrowed))
        assert [one.victim for one in decision.preemptions] == victims
        assert decision.reasons == {"a": R.PREEMPTION_IN_PROGRESS if victims else R.POOL_FULL}
