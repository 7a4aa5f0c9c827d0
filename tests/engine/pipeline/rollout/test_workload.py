"""The list of held groups is always current, although unchanged entries are cached."""

from engine.pipeline.records import GroupKey, GroupTask, HeldGroup, SampleKey, Trajectory
from engine.pipeline.rollout.workload import Workload
from engine.policy.lineage import NO_WEIGHTS, WeightsId

FIRST, SECOND = WeightsId(0, 1), WeightsId(0, 2)
KEY = GroupKey(ordinal=7)


def _workload() -> Workload:
    work = Workload(max_batch=8, keeps_version=False)
    assert work.begin(_task(lease=1, samples=(0, 1, 2)), FIRST)
    return work


def _task(*, lease: int, samples: tuple[int, ...]) -> GroupTask:
    return GroupTask(key=KEY, lease=lease, samples=samples)


def _held(*, lease: int, samples: tuple[int, ...], weights: WeightsId, is_over: bool = False) -> HeldGroup:
    return HeldGroup(key=KEY, lease=lease, samples=samples, weights=weights, is_over=is_over)


def _ended(*samples: int) -> list[Trajectory]:
    keys = [SampleKey(group=KEY, sample=sample) for sample in samples]
    return [Trajectory(key=key, weights=FIRST, reward=0.0, num_tokens=5) for key in keys]


def test_list_is_the_same_while_nothing_changes() -> None:
    work = _workload()
    assert work.groups() == work.groups() == (_held(lease=1, samples=(0, 1, 2), weights=FIRST),)


def test_samples_granted_later_are_listed_under_their_lease() -> None:
    work = _workload()
    work.groups()
    work.begin(_task(lease=4, samples=(3,)), FIRST)
    assert work.groups() == (_held(lease=4, samples=(0, 1, 2, 3), weights=FIRST),)


def test_lease_that_grants_nothing_new_is_listed() -> None:
    work = _workload()
    work.groups()
    assert work.begin(_task(lease=4, samples=(0, 1)), FIRST) is None
    assert work.groups() == (_held(lease=4, samples=(0, 1, 2), weights=FIRST),)


def test_work_moved_to_other_weights_lists_them() -> None:
    work = _workload()
    work.groups()
    work.switch_weights(SECOND)
    assert work.groups() == (_held(lease=1, samples=(0, 1, 2), weights=SECOND),)


def test_ended_sample_is_listed_until_data_has_taken_it() -> None:
    work = _workload()
    work.groups()
    work.end(_ended(1))
    assert work.groups() == (_held(lease=1, samples=(0, 1, 2), weights=FIRST),)
    work.confirm([SampleKey(group=KEY, sample=1)])
    assert work.groups() == (_held(lease=1, samples=(0, 2), weights=FIRST),)
    work.end(_ended(0, 2))
    assert work.groups() == (_held(lease=1, samples=(0, 2), weights=NO_WEIGHTS, is_over=True),)


def test_stopping_group_is_listed_until_it_has_stopped() -> None:
    work = _workload()
    stopped = tuple(work.stop_all())
    assert work.groups() == stopped == (_held(lease=1, samples=(0, 1, 2), weights=FIRST),)
    work.clear_stopping()
    assert work.groups() == ()
