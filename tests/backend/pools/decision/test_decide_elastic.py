"""Idle devices become further replicas, and are the first to be returned."""

from dataclasses import replace

from backend.pools.decision.decide import decide
from backend.pools.decision.views import Resize
from tests.backend.pools.decision.decide_world import World, holder, job, pool, team


def test_idle_devices_become_replicas() -> None:
    runs = [holder("runs", 3, most_replicas=4)]
    assert decide(pool(holders=runs)).grants == (Resize(job="runs", replicas=4),)
    assert decide(pool(holders=runs, is_open=False)).grants == ()


def test_a_job_that_starts_gets_its_replicas_at_once() -> None:
    decision = decide(pool(job("a", 3, most_replicas=2)))
    assert decision.admitted == ("a",) and decision.grants == (Resize(job="a", replicas=2),)


def test_no_replica_is_granted_while_a_job_could_start() -> None:
    runs = [holder("runs", 3, most_replicas=4, preemptible=False)]
    assert decide(pool(job("a", 6, team="bees"), holders=runs)).grants == ()
    unlimited = {"ants": team(8), "bees": team(0)}
    assert decide(pool(job("never", 9), holders=runs, teams=unlimited)).grants == (Resize(job="runs", replicas=4),)


def test_a_team_whose_own_line_waits_for_its_quota_gets_none() -> None:
    teams = {"ants": team(4), "bees": team(4)}
    runs = [holder("a", 3, most_replicas=4, preemptible=False), holder("b", 1, team="bees", most_replicas=1)]
    decision = decide(pool(job("firm", 2, preemptible=False), teams=teams, holders=runs))
    assert decision.grants == (Resize(job="b", replicas=1),)


def test_replicas_are_spread_by_share_and_report_borrowing() -> None:
    teams = {"ants": team(2), "bees": team(0), "crabs": team(6)}
    runs = [holder("a", 2, most_replicas=9), holder("b", 2, team="bees", most_replicas=9)]
    assert decide(pool(teams=teams, holders=runs)).grants == (
        Resize(job="a", replicas=3, borrowed=3),
        Resize(job="b", replicas=1, borrowed=1),
    )


def test_a_replica_s_longest_run_must_be_paid_for_too() -> None:
    teams = {"ants": replace(team(8), budget_left=2 * 3_600.0)}
    assert decide(pool(teams=teams, holders=[holder("a", 2, most_replicas=5)])).grants == (Resize(job="a", replicas=2),)


def test_ceiling_and_fence_bind_replicas_too() -> None:
    teams = {"ants": team(2, borrow=3), "bees": team(6, lend=2)}
    assert decide(pool(teams=teams, holders=[holder("a", 2, most_replicas=9)])).grants == (
        Resize(job="a", replicas=2, borrowed=2),
    )
    teams["bees"] = team(6)
    assert decide(pool(teams=teams, holders=[holder("a", 2, most_replicas=9)])).grants == (
        Resize(job="a", replicas=3, borrowed=3),
    )


def test_what_is_being_disturbed_does_not_grow() -> None:
    busy = replace(holder("a", 2, most_replicas=9), may_grow=False)
    assert decide(pool(holders=[busy])).grants == ()


def test_a_replica_is_handed_over_and_comes_back() -> None:
    """Grown in an idle pool, shrunk for a new job, grown again once that has ended."""
    world = World(capacity=8, teams={"ants": team(8)})
    world.submit(job("grows", 3, most_replicas=5))
    world.minute()
    assert world.holders["grows"].held == 8
    world.submit(replace(job("comes", 4), max_runtime_s=120.0))
    seen = []
    for _ in range(6):
        world.minute()
        seen.append((world.holders["grows"].replicas, "comes" in world.holders))
    assert seen == [(1, False), (1, True), (1, True), (5, False), (5, False), (5, False)]
