"""Repack: which replicas are emptied, and onto which hosts."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.policy.lineage import WeightsId
from engine.policy.repack import Merge, ReplicaView, plan_repack

OLD, NEWEST = WeightsId(0, 1), WeightsId(0, 9)


def view(replica: int, *, kv: float, running: int = 4, version: int = 1, **beside: Any) -> ReplicaView:
    weights = WeightsId(0, version)
    return ReplicaView(replica=replica, weights=weights, num_running=running, kv_used=kv, **beside)


def plan(*views: ReplicaView, kv_ceiling: float = 0.9, max_batch: int = 16) -> list[Merge]:
    return plan_repack(views, newest=NEWEST, kv_ceiling=kv_ceiling, max_batch=max_batch)


def test_emptiest_source_moves_to_the_fullest_fitting_host() -> None:
    assert plan(view(0, kv=0.1), view(1, kv=0.3), view(2, kv=0.6)) == [Merge(source=0, host=2, weights=OLD)]
    assert plan(view(0, kv=0.1), view(1, kv=0.85), view(2, kv=0.5)) == [Merge(source=0, host=2, weights=OLD)]


def test_two_tails_may_go_to_one_host() -> None:
    assert plan(view(0, kv=0.1), view(1, kv=0.2), view(2, kv=0.4)) == [
        Merge(source=0, host=2, weights=OLD),
        Merge(source=1, host=2, weights=OLD),
    ]


def test_full_replica_is_left_alone() -> None:
    assert plan(view(0, kv=0.2, running=16), view(1, kv=0.3)) == []


def test_requests_that_hold_no_cache_are_a_tail_too() -> None:
    """All of them wait for their environment."""
    assert plan(view(0, kv=0.0), view(1, kv=0.0, running=8)) == [Merge(source=0, host=1, weights=OLD)]


def test_replica_on_newest_weights_is_left_alone() -> None:
    assert plan(view(0, kv=0.1, version=9), view(1, kv=0.2, version=9)) == []


def test_work_on_other_weights_takes_up_a_hosts_room() -> None:
    source = view(0, kv=0.1)

    def host(**beside: Any) -> ReplicaView:
        return view(1, kv=0.3, has_free_slot=True, **beside)

    assert plan(source, host(num_other=8, kv_other=0.4)) == [Merge(source=0, host=1, weights=OLD)]
    assert plan(source, host(num_other=9)) == []
    assert plan(source, host(kv_other=0.55)) == []


def test_replica_with_a_free_slot_is_not_emptied() -> None:
    assert plan(*(view(replica, kv=0.1, has_free_slot=True) for replica in (0, 1))) == []


def test_one_slot_of_a_replica_is_emptied_at_a_time() -> None:
    two = [view(0, kv=0.1, version=version, num_other=4, kv_other=0.1) for version in (1, 2)]
    hosts = [view(1, kv=0.3), view(2, kv=0.3, version=2)]
    assert plan(*two, *hosts) == [Merge(source=0, host=1, weights=OLD)]


views = st.builds(
    view,
    replica=st.integers(0, 10_000),
    kv=st.floats(0, 1),
    running=st.integers(0, 20),
    version=st.integers(7, 9),
    num_other=st.integers(0, 8),
    kv_other=st.floats(0, 0.5),
)


@given(st.lists(views, max_size=12, unique_by=lambda each: each.replica), st.floats(0.1, 1.0), st.integers(1, 24))
def test_no_plan_breaks_a_bound(replicas: list[ReplicaView], kv_ceiling: float, max_batch: int) -> None:
    merges = plan_repack(replicas, newest=NEWEST, kv_ceiling=kv_ceiling, max_batch=max_batch)
    by_number = {each.replica: each for each in replicas}
    sources = [merge.source for merge in merges]
    hosts = {merge.host for merge in merges}
    assert len(set(sources)) == len(sources), "a source is emptied once, and completely"
    assert not hosts & set(sources), "never both"
    before = sum(each.num_running + each.num_other for each in replicas)
    running = {each.replica: each.num_running + each.num_other for each in replicas}
    kv = {each.replica: each.kv_used + each.kv_other for each in replicas}
    for merge in merges:
        source = by_number[merge.source]
        assert by_number[merge.source].weights == by_number[merge.host].weights == merge.weights < NEWEST
        assert source.num_running > 0
        running[merge.host] += source.num_running
        running[merge.source] -= source.num_running
        kv[merge.host] += source.kv_used
    assert sum(running.values()) == before, "nothing is lost, nothing is doubled"
    assert all(running[host] <= max_batch and kv[host] <= kv_ceiling + 1e-9 for host in hosts)


def test_by_kv_a_replica_at_its_plateau_is_left_alone() -> None:
    views = [view(0, kv=0.1), view(1, kv=0.1, kv_falls=False), view(2, kv=0.3)]
    merges = plan_repack(views, newest=NEWEST, kv_ceiling=0.9, max_batch=16, by="kv")
    assert merges == [Merge(source=0, host=2, weights=OLD)]
    assert len(plan(*views)) == 2, "by places it is a tail like the others"
