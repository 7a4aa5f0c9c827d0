"""The indexed plan equals a plan over all pairs, and looks at few hosts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.policy import repack
from engine.policy.lineage import WeightsId
from engine.policy.repack import Merge, RepackBy, ReplicaView, plan_repack
from engine.sim.chance import Chance

NEWEST = WeightsId(0, 9)


def by_pairs(
    replicas: Sequence[ReplicaView], *, newest: WeightsId, kv_ceiling: float, max_batch: int, by: RepackBy
) -> list[Merge]:
    """Reference: each source, by rising KV use, moves to the fullest of all other replicas with room for it."""
    kv = {view.replica: view.kv_used + view.kv_other for view in replicas}
    running = {view.replica: view.num_running + view.num_other for view in replicas}
    merges: list[Merge] = []
    for weights in sorted({view.weights for view in replicas if view.weights < newest}):
        tails = [view for view in replicas if view.weights == weights and 0 < view.num_running < max_batch]
        tails = [view for view in tails if view.kv_falls or by == "places"]
        for source in sorted(tails, key=lambda view: (view.kv_used, view.num_running, view.replica)):
            sources, hosts = {merge.source for merge in merges}, {merge.host for merge in merges}
            if source.replica in sources | hosts or source.has_free_slot:
                continue
            fitting = [
                (kv[view.replica], running[view.replica], view.replica)
                for view in tails
                if view.replica not in sources | {source.replica}
                and kv[view.replica] + source.kv_used <= kv_ceiling
                and running[view.replica] + source.num_running <= max_batch
            ]
            if fitting:
                host = max(fitting)[-1]
                kv[host] += source.kv_used
                running[host] += source.num_running
                merges.append(Merge(source=source.replica, host=host, weights=weights))
    return merges


# Few different figures, so that there are many ties, and sums that meet a bound exactly.
shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.45, 0.5]))
views = st.builds(
    ReplicaView,
    replica=st.integers(0, 40),
    weights=st.builds(WeightsId, st.just(0), st.integers(6, 9)),
    num_running=st.integers(0, 20),
    kv_used=shares,
    num_other=st.integers(0, 8),
    kv_other=shares,
    kv_falls=st.booleans(),
    has_free_slot=st.sampled_from([False, False, False, True]),
)


@given(
    st.lists(views, max_size=40, unique_by=lambda view: (view.replica, view.weights)),
    st.floats(0.1, 1.0),
    st.integers(1, 24),
    st.sampled_from(["places", "kv"]),
)
def test_indexed_plan_equals_the_plan_over_all_pairs(
    replicas: list[ReplicaView], kv_ceiling: float, max_batch: int, by: RepackBy
) -> None:
    limits = {"newest": NEWEST, "kv_ceiling": kv_ceiling, "max_batch": max_batch, "by": by}
    assert plan_repack(replicas, **limits) == by_pairs(replicas, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("num", [100, 1_000, 10_000])
def test_plan_takes_few_hosts_per_replica_at_any_cluster_size(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    take = repack._Hosts.take

    def counted(hosts: repack._Hosts, most_running: int) -> "repack._Load | None":
        nonlocal looks
        looks += 1
        return take(hosts, most_running)

    monkeypatch.setattr(repack._Hosts, "take", counted)
    chance = Chance(1, "tails")
    tails = [
        ReplicaView(
            replica=replica,
            weights=WeightsId(0, chance.whole(5, 8)),
            num_running=chance.whole(1, 200),
            kv_used=chance.uniform(0.0, 0.9),
        )
        for replica in range(num)
    ]
    merges = plan_repack(tails, newest=NEWEST, kv_ceiling=0.9, max_batch=256)
    assert merges and looks <= 3 * num
