"""Schedules: the three questions, and that a job's own bound tightens a preset."""

import pytest

from engine.policy.recovery import GiveUp, Replace, after_loss, grader_is_broken
from engine.policy.sampling import ReadyGroupView, oldest_first
from engine.policy.schedule import PRESETS, DemandView, ReplicaWeightsView, Schedule, schedule_for
from engine.spec.job import ScheduleSpec

SYNC, LAMINAR = PRESETS["sync"], PRESETS["laminar"]


def demand(*, num_open: int, steps_left: int = 10, trained_version: int = 0) -> DemandView:
    return DemandView(num_open=num_open, groups_per_step=4, steps_left=steps_left, trained_version=trained_version)


def weights(*, version: int, newest: int, num_running: int) -> ReplicaWeightsView:
    return ReplicaWeightsView(version=version, newest=newest, num_running=num_running)


def test_every_name_of_the_spec_has_a_preset() -> None:
    for name in ("laminar", "sync"):
        assert schedule_for(ScheduleSpec(name=name)).name == name


def test_sync_starts_one_step_and_only_on_the_newest_weights() -> None:
    assert SYNC.may_start(demand(num_open=3), version=0)
    assert not SYNC.may_start(demand(num_open=4), version=0)
    assert not SYNC.may_start(demand(num_open=0, trained_version=1), version=0)


def test_laminar_runs_ahead_of_the_trainer_but_not_without_end() -> None:
    assert LAMINAR.may_start(demand(num_open=11), version=0)
    assert not LAMINAR.may_start(demand(num_open=12), version=0)
    assert LAMINAR.may_start(demand(num_open=0, trained_version=7), version=2)


def test_nothing_is_started_that_the_job_does_not_need() -> None:
    assert LAMINAR.may_start(demand(num_open=3, steps_left=1), version=0)
    assert not LAMINAR.may_start(demand(num_open=4, steps_left=1), version=0)


@pytest.mark.parametrize("schedule", [SYNC, LAMINAR])
def test_running_sequences_are_drained_before_weights_change(schedule: Schedule) -> None:
    assert schedule.refresh(weights(version=1, newest=2, num_running=3)) == "drain"
    assert schedule.refresh(weights(version=1, newest=2, num_running=0)) == "install"
    assert schedule.refresh(weights(version=2, newest=2, num_running=0)) == "keep"


def test_a_bound_on_staleness_tightens_every_answer() -> None:
    bounded = schedule_for(ScheduleSpec(name="laminar", max_staleness=1))
    assert not bounded.may_start(demand(num_open=8), version=0)
    assert not bounded.may_start(demand(num_open=0, trained_version=2), version=0)
    assert bounded.may_train(version=1, trained_version=2)
    assert not bounded.may_train(version=0, trained_version=2)


def test_a_looser_bound_does_not_loosen_sync() -> None:
    assert schedule_for(ScheduleSpec(name="sync", max_staleness=5)).max_staleness == 0


def test_a_batch_is_whole_or_absent_and_first_in_first_out() -> None:
    ready = [ReadyGroupView(version=0, ready_at=at) for at in (3.0, 1.0, 2.0)]
    assert oldest_first(ready, num_groups=4) is None
    assert oldest_first(ready, num_groups=2) == [1, 2]


def test_a_replica_is_replaced_later_and_later_and_then_given_up() -> None:
    losses = [float(at) for at in range(6)]
    assert [after_loss(losses[: n + 1], losses[n]) for n in range(6)] == [
        Replace(after_s=0.0), Replace(after_s=2.0), Replace(after_s=4.0), Replace(after_s=8.0), Replace(after_s=16.0),
        GiveUp(num_losses=6),
    ]  # fmt: skip
    assert after_loss([0.0, 1_000.0], 1_000.0) == Replace(after_s=0.0)


def test_a_grader_is_judged_only_on_enough_groups() -> None:
    assert not grader_is_broken(num_failed_groups=10, num_ended_groups=10)
    assert grader_is_broken(num_failed_groups=11, num_ended_groups=20)
    assert not grader_is_broken(num_failed_groups=10, num_ended_groups=20)
