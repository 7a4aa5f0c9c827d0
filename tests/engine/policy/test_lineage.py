"""Lineage: staleness is the distance in the tree of weights."""

from hypothesis import given
from hypothesis import strategies as st

from engine.policy.lineage import Lineage, WeightsId


def test_staleness_along_one_trainer_is_the_difference() -> None:
    assert Lineage().staleness(WeightsId(0, 3), at=5) == 2


def test_a_dead_branch_counts_the_way_back_to_the_fork_too() -> None:
    lineage = Lineage().forked(1, at=2)
    assert lineage.staleness(WeightsId(0, 2), at=2) == 0, "the checkpoint itself"
    assert lineage.staleness(WeightsId(0, 4), at=2) == 2
    assert lineage.staleness(WeightsId(0, 4), at=5) == 5
    assert lineage.staleness(WeightsId(1, 4), at=5) == 1


def test_weights_of_later_epoch_are_newer_than_earlier_ones() -> None:
    assert WeightsId(1, 2) > WeightsId(0, 9)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=4), st.data())
def test_staleness_is_the_distance_in_the_tree(lives: list[tuple[int, int]], data: st.DataObject) -> None:
    """`lives`: how many steps each trainer makes, and how far back the next one begins."""
    serial, lineage = 0, Lineage()
    path: tuple[int, ...] = ()
    paths = {WeightsId(0, 0): path}
    for epoch, (num_steps, back) in enumerate(lives):
        for _ in range(num_steps):
            serial += 1
            path = (*path, serial)
            paths[WeightsId(epoch, len(path))] = path
        path = path[: max(0, len(path) - back)]
        lineage = lineage.forked(epoch + 1, at=len(path))
        paths[WeightsId(epoch + 1, len(path))] = path
    weights = data.draw(st.sampled_from(sorted(paths)))
    common = sum(1 for left, right in zip(paths[weights], path, strict=False) if left == right)
    assert lineage.staleness(weights, at=len(path)) == len(path) + len(paths[weights]) - 2 * common
