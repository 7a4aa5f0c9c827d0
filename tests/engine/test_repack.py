"""Repack: who is emptied, and onto whom."""

from hypothesis import given
from hypothesis import strategies as st

from engine.policy.lineage import WeightsId
from engine.policy.repack import Merge, ReplicaView, plan_repack

NEWEST = WeightsId(0, 9)


def view(replica: int, *, kv: float, peak: float = 1.0, running: int = 4, version: int = 1) -> ReplicaView:
    return ReplicaView(replica=replica, weights=WeightsId(0, version), num_running=running, kv_used=kv, kv_peak=peak)


def plan(*views: ReplicaView, kv_ceiling: float = 0.9, max_batch: int = 16) -> list[Merge]:
    return plan_repack(views, newest=NEWEST, kv_ceiling=kv_ceiling, max_batch=max_batch)


def test_the_emptiest_goes_to_the_fullest_that_it_fits() -> None:
    assert plan(view(0, kv=0.1), view(1, kv=0.3), view(2, kv=0.6)) == [Merge(source=0, host=2)]
    assert plan(view(0, kv=0.1), view(1, kv=0.85), view(2, kv=0.5)) == [Merge(source=0, host=2)]


def test_two_tails_may_go_to_one_host() -> None:
    assert plan(view(0, kv=0.1), view(1, kv=0.2), view(2, kv=0.4)) == [
        Merge(source=0, host=2),
        Merge(source=1, host=2),
    ]


def test_who_is_still_at_its_plateau_is_left_alone() -> None:
    assert plan(view(0, kv=0.2, peak=0.2), view(1, kv=0.3)) == []


def test_who_holds_the_newest_weights_has_nothing_to_gain() -> None:
    assert plan(view(0, kv=0.1, version=9), view(1, kv=0.2, version=9)) == []


views = st.builds(
    view,
    replica=st.integers(0, 10_000),
    kv=st.floats(0, 1),
    peak=st.floats(0, 1),
    running=st.integers(0, 20),
    version=st.integers(7, 9),
)


@given(st.lists(views, max_size=12, unique_by=lambda each: each.replica), st.floats(0.1, 1.0), st.integers(1, 24))
def test_no_plan_breaks_a_bound(replicas: list[ReplicaView], kv_ceiling: float, max_batch: int) -> None:
    merges = plan_repack(replicas, newest=NEWEST, kv_ceiling=kv_ceiling, max_batch=max_batch)
    by_number = {each.replica: each for each in replicas}
    sources = [merge.source for merge in merges]
    hosts = {merge.host for merge in merges}
    assert len(set(sources)) == len(sources), "a source is emptied once, and completely"
    assert not hosts & set(sources), "never both"
    before = sum(each.num_running for each in replicas)
    running = {each.replica: each.num_running for each in replicas}
    kv = {each.replica: each.kv_used for each in replicas}
    for merge in merges:
        assert by_number[merge.source].weights == by_number[merge.host].weights < NEWEST
        assert running[merge.source] > 0
        running[merge.host] += running.pop(merge.source)
        kv[merge.host] += kv.pop(merge.source)
    assert sum(running.values()) == before, "nothing is lost, nothing is doubled"
    assert all(running[host] <= max_batch and kv[host] <= kv_ceiling + 1e-9 for host in hosts)
