"""Whose devices are taken back, in which order, no more than needed, and for which job they are held."""

from datetime import timedelta

from hypothesis import given, settings

from backend.pools.decision.decide import decide
from backend.pools.decision.views import Decision, Resize, WaitingReason
from tests.backend.pools.decision.decide_world import MINUTE, World, holder, job, pool, team, worlds

R = WaitingReason
THIRDS = {"ants": team(4), "bees": team(2), "crabs": team(2)}


def victims(decision: Decision) -> list[str]:
    return [one.victim for one in decision.preemptions]


def test_who_borrows_most_loses_first() -> None:
    holders = [holder("b", 3, team="bees"), holder("c", 5, team="crabs")]
    decision = decide(pool(job("a", 3), teams=THIRDS, holders=holders))
    assert victims(decision) == ["c"]
    assert decision.claims == {"a": 3}


def test_least_urgent_then_youngest_job_is_paused_first() -> None:
    urgent, old, young = (
        holder("urgent", 2, team="bees", priority=5, ran=timedelta(minutes=20)),
        holder("old", 2, team="bees", ran=timedelta(hours=5)),
        holder("young", 2, team="bees", ran=timedelta(hours=1)),
    )
    decision = decide(
        pool(job("a", 2), teams={"ants": team(4), "bees": team(0)}, capacity=6, holders=[urgent, old, young])
    )
    assert victims(decision) == ["young"]


def test_no_victim_is_taken_that_is_not_needed() -> None:
    """The small one is first in order, the big one is needed, and then the small one is not needed any more."""
    holders = [holder("small", 1, team="bees", ran=timedelta(minutes=30)), holder("big", 7, team="bees")]
    decision = decide(pool(job("a", 7), teams={"ants": team(8), "bees": team(0)}, holders=holders))
    assert victims(decision) == ["big"]


def test_what_is_firm_is_never_taken() -> None:
    firm = [holder("firm", 4, team="bees", preemptible=False), holder("soft", 4, team="bees")]
    decision = decide(pool(job("a", 4), teams={"ants": team(4), "bees": team(4)}, holders=firm))
    assert victims(decision) == ["soft"]


def test_strictly_more_urgent_job_preempts_within_its_team() -> None:
    runs = [holder("runs", 8, priority=1)]
    for priority, paused in ((0, []), (1, []), (2, ["runs"])):
        decision = decide(pool(job("a", 4, priority=priority), holders=runs))
        assert victims(decision) == paused
    assert victims(decide(pool(job("a", 4, priority=9), holders=[holder("runs", 8, preemptible=False)]))) == []


def test_elastic_replicas_go_before_any_job_is_paused() -> None:
    holders = [holder("grown", 3, replicas=5, preemptible=False)]
    decision = decide(pool(job("a", 2, preemptible=False), holders=holders))
    assert not decision.preemptions
    assert decision.reclaims == (Resize(job="grown", replicas=3),)
    assert (decision.reasons, decision.claims) == ({"a": R.PREEMPTION_IN_PROGRESS}, {"a": 2})


def test_elastic_replicas_within_nominal_are_not_taken() -> None:
    holders = [holder("grown", 3, team="bees", replicas=5, preemptible=False)]
    decision = decide(pool(job("a", 2), teams={"ants": team(0), "bees": team(8)}, holders=holders))
    assert not decision.reclaims and decision.reasons == {"a": R.POOL_FULL}


def test_elastic_replica_moves_only_to_a_lesser_borrower() -> None:
    teams = {"ants": team(0), "bees": team(0), "crabs": team(8)}
    holders = [holder("grown", 3, team="bees", ran=MINUTE, replicas=5)]
    for devices, left in ((2, 3), (3, 2), (5, None)):
        decision = decide(pool(job("a", devices), teams=teams, holders=holders))
        assert decision.reclaims == (() if left is None else (Resize(job="grown", replicas=left),))


def test_equal_borrowers_take_nothing_from_each_other() -> None:
    """Otherwise each could take from the other forever."""
    teams = {"ants": team(0), "bees": team(0), "crabs": team(7)}
    for borrowed, changes in ((3, False), (4, True)):
        holders = [holder("grown", borrowed, team="bees", ran=MINUTE, replicas=1)]
        decision = decide(pool(job("a", 4), teams=teams, holders=holders, capacity=borrowed + 4))
        assert bool(decision.reclaims) == changes


def test_what_is_being_freed_goes_to_its_claim_first() -> None:
    """An older job of a team that borrows less must wait for devices freed for another job."""
    teams = {"ants": team(4), "bees": team(0), "crabs": team(4)}
    leaving = [holder("goes", 4, team="bees", is_leaving=True), holder("stays", 3, team="crabs", preemptible=False)]
    line = [job("thief", 1, team="bees", waited=timedelta(hours=1)), job("mine", 4)]
    decision = decide(pool(*line, teams=teams, holders=leaving, claims={"mine": 4}))
    assert decision.admitted == ("thief",), "one device is free apart from the claim"
    decision = decide(pool(line[1], job("thief", 2, team="bees"), teams=teams, holders=leaving, claims={"mine": 4}))
    assert decision.reasons == {"mine": R.PREEMPTION_IN_PROGRESS, "thief": R.POOL_FULL}
    half = [holder("goes", 2, team="bees", is_leaving=True), leaving[1]]
    decision = decide(pool(line[1], job("thief", 2, team="bees"), teams=teams, holders=half, claims={"mine": 4}))
    assert decision.reasons == {"mine": R.PREEMPTION_IN_PROGRESS, "thief": R.POOL_FULL}
    decision = decide(pool(line[1], job("thief", 2, team="bees"), teams=teams, holders=leaving[1:], claims={"mine": 4}))
    assert (decision.admitted, decision.claims) == (("mine",), {})


def test_a_claim_that_nothing_fulfils_any_more_is_given_up() -> None:
    firm = [holder("runs", 8, preemptible=False)]
    decision = decide(pool(job("a", 4), holders=firm, claims={"a": 4}))
    assert (decision.claims, decision.reasons) == ({}, {"a": R.POOL_FULL})


def test_one_preemption_is_not_made_twice() -> None:
    """While the victim drains, no further victim is chosen."""
    teams = {"ants": team(4), "bees": team(0)}
    holders = [holder("goes", 4, team="bees", is_leaving=True), holder("stays", 4, team="bees")]
    decision = decide(pool(job("a", 4), teams=teams, holders=holders, claims={"a": 4}))
    assert not decision.preemptions and decision.claims == {"a": 4}


def test_leaving_devices_are_awaited_before_pausing_jobs() -> None:
    teams = {"ants": team(4), "bees": team(0)}
    holders = [holder("ends", 4, team="bees", is_leaving=True, preemptible=False), holder("stays", 4, team="bees")]
    decision = decide(pool(job("a", 4), teams=teams, holders=holders))
    assert not decision.preemptions
    assert (decision.reasons, decision.claims) == ({"a": R.PREEMPTION_IN_PROGRESS}, {"a": 4})


@settings(deadline=None)
@given(worlds())
def test_no_victim_and_no_replica_could_have_been_spared(world: World) -> None:
    """If any one of them were spared, with all others taken, the job could not start."""
    view = world.view()
    first = decide(view)
    if len({one.on_behalf_of for one in first.preemptions}) != 1 or first.reclaims:
        return
    job_id = first.preemptions[0].on_behalf_of
    others = [one for one in first.claims if one != job_id]
    if others or len(first.admissions) > 0:
        return
    taken = victims(first)
    for spared in taken:
        world = World(capacity=view.capacity, teams=view.teams, now=view.now)
        world.jobs = {one.id: one for one in view.queued}
        world.queued = {job_id: world.jobs[job_id]}
        world.holders = {one.id: one for one in view.holders if not one.is_leaving and one.id not in taken}
        world.holders |= {one.id: one for one in view.holders if one.id == spared}
        assert job_id not in decide(world.view()).admitted
