"""Schedules: starting, refreshing and training, and a job's bound that tightens a preset."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.pipeline.plan import Plan
from engine.policy.lineage import WeightsId
from engine.policy.recovery import GiveUp, Replace, after_loss, breaks_the_run, grader_is_broken
from engine.policy.sampling import has_signal, oldest_first
from engine.policy.schedule import PRESETS, DemandView, ReplicaWeightsView, Schedule, schedule_for
from engine.sim.scenario import SCHEDULES
from engine.spec.job import JobSpec, ScheduleSpec
from engine.spec.schedules import ScheduleName
from engine.spec.slots import kv_tokens_of_a_slot

SYNC, LAMINAR, ONE_STEP, STREAM = (PRESETS[name] for name in ("sync", "laminar", "one_step", "stream"))
ONE_SLOT = schedule_for(ScheduleSpec(name="laminar"), weight_slots=1)


def demand(*, num_open: int, steps_left: int = 10, **counts: int) -> DemandView:
    return DemandView(num_open=num_open, groups_per_step=4, steps_left=steps_left, **counts)


def weights(*, version: int, newest: int, has_free_slot: bool, epoch: int = 0) -> ReplicaWeightsView:
    return ReplicaWeightsView(
        weights=WeightsId(0, version), newest=WeightsId(epoch, newest), has_free_slot=has_free_slot
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_name_of_the_spec_has_a_preset(name: ScheduleName) -> None:
    assert schedule_for(ScheduleSpec(name=name), weight_slots=1).name == name


def test_sync_opens_a_step_when_the_previous_one_is_done() -> None:
    assert SYNC.next_window(demand(num_open=0)) == 4
    assert SYNC.next_window(demand(num_open=4)) == 0, "the batch is in training"
    assert SYNC.may_start(demand(num_open=0, left_of_window=1), lag=0)
    assert not SYNC.may_start(demand(num_open=0, left_of_window=1), lag=1)


def test_one_step_generates_one_batch_while_another_is_trained() -> None:
    assert ONE_STEP.next_window(demand(num_open=4)) == 4
    assert ONE_STEP.next_window(demand(num_open=8, num_ready=4)) == 0
    assert ONE_STEP.next_window(demand(num_open=5, num_in_progress=1)) == 0, "the barrier"


def test_a_stream_opens_two_steps_at_a_time_one_window_ahead() -> None:
    assert STREAM.next_window(demand(num_open=8, num_ready=8)) == 8
    assert STREAM.next_window(demand(num_open=12, num_ready=8)) == 0


def test_a_window_fills_up_a_step_that_lost_groups() -> None:
    assert SYNC.next_window(demand(num_open=3, num_ready=3)) == 1
    assert ONE_STEP.next_window(demand(num_open=7, num_ready=3)) == 1


def test_laminar_runs_ahead_of_the_trainer_but_not_without_end() -> None:
    assert LAMINAR.may_start(demand(num_open=11), lag=0)
    assert not LAMINAR.may_start(demand(num_open=12), lag=0)
    assert LAMINAR.may_start(demand(num_open=0), lag=5)


def test_no_group_starts_that_the_job_does_not_need() -> None:
    assert LAMINAR.may_start(demand(num_open=3, steps_left=1), lag=0)
    assert not LAMINAR.may_start(demand(num_open=4, steps_left=1), lag=0)
    assert STREAM.next_window(demand(num_open=0, steps_left=1)) == 4


@given(eta=st.integers(0, 8), version=st.integers(0, 50), per_step=st.integers(1, 64), pending=st.integers(0, 700))
def test_the_capacity_of_areal_is_a_lead(eta: int, version: int, per_step: int, pending: int) -> None:
    """(eta + version + 1)·B - (accepted + running): accepted counts all groups ever finished, trained ones included."""
    capacity = (eta + version + 1) * per_step - (version * per_step + pending)
    schedule = Schedule(name="partial", lead_steps=eta)
    view = DemandView(num_open=pending, groups_per_step=per_step, steps_left=1_000)
    assert schedule.may_start(view, lag=0) == (capacity > 0)


@given(
    staleness=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    per_step=st.integers(1, 64),
    stale=st.integers(0, 64),
    started=st.integers(0, 200),
)
def test_the_budget_of_verl_is_a_lead(staleness: float, per_step: int, stale: int, started: int) -> None:
    """(1 + staleness)·B - stale, of which `started` are used up since the last sync."""
    budget = ceil((1 + staleness) * per_step) - stale
    schedule = Schedule(name="bounded", lead_steps=staleness)
    view = DemandView(num_open=stale + started, groups_per_step=per_step, steps_left=1_000)
    assert schedule.may_start(view, lag=0) == (started < budget)


@pytest.mark.parametrize("schedule", [SYNC, ONE_STEP, STREAM, PRESETS["bounded"], PRESETS["paper"]])
def test_running_sequences_are_drained_before_weights_change(schedule: Schedule) -> None:
    assert schedule.refresh(weights(version=1, newest=2, has_free_slot=False)) == "drain"
    assert schedule.refresh(weights(version=1, newest=2, has_free_slot=True)) == "install"
    assert schedule.refresh(weights(version=2, newest=2, has_free_slot=True)) == "keep"


def test_laminar_installs_in_free_slot_but_drains_for_new_epoch() -> None:
    assert LAMINAR.refresh(weights(version=1, newest=2, has_free_slot=True)) == "install"
    assert LAMINAR.refresh(weights(version=1, newest=9, has_free_slot=False)) == "keep"
    assert LAMINAR.refresh(weights(version=4, newest=2, has_free_slot=False, epoch=1)) == "drain"
    assert LAMINAR.refresh(weights(version=2, newest=2, has_free_slot=True)) == "keep"


def capped(*, newest: int, oldest: int | None, has_free_slot: bool, epoch: int = 0) -> bool:
    schedule = schedule_for(ScheduleSpec(name="laminar", age_cap=2), weight_slots=2)
    view = ReplicaWeightsView(
        weights=WeightsId(0, 4),
        newest=WeightsId(epoch, newest),
        has_free_slot=has_free_slot,
        oldest=None if oldest is None else WeightsId(0, oldest),
    )
    lays_over = schedule.lays_over(view)
    assert schedule.refresh(view) == "install" or not lays_over
    return lays_over


def test_age_cap_overwrites_old_weights_or_when_no_slot_is_free() -> None:
    assert capped(newest=5, oldest=2, has_free_slot=True), "three versions old"
    assert not capped(newest=5, oldest=3, has_free_slot=True), "there is a slot for them"
    assert capped(newest=5, oldest=3, has_free_slot=False)
    assert capped(newest=0, oldest=4, has_free_slot=True, epoch=1), "of a dead trainer"
    assert not capped(newest=5, oldest=None, has_free_slot=False), "all of it has to end on its own"
    assert not capped(newest=5, oldest=5, has_free_slot=True)


def test_an_age_cap_is_of_versions_side_by_side() -> None:
    spec = ScheduleSpec(name="laminar", age_cap=2)
    assert schedule_for(spec, weight_slots=2).mixes_versions and not PRESETS["laminar"].mixes_versions
    assert schedule_for(spec, weight_slots=2).keeps_version
    assert schedule_for(spec, weight_slots=1).age_cap is None
    for rollout in ({"weight_slots": 1}, {"engine": "vllm"}):
        with pytest.raises(ValidationError, match=r"schedule.age_cap has no effect in this job\. Only with"):
            JobSpec.model_validate({"name": "cap", "schedule": {"age_cap": 2}, "rollout": rollout})


def test_laminar_with_one_slot_drains_for_second_version() -> None:
    assert ONE_SLOT.refresh(weights(version=1, newest=2, has_free_slot=False)) == "keep"
    assert ONE_SLOT.refresh(weights(version=1, newest=3, has_free_slot=False)) == "drain"
    assert ONE_SLOT.refresh(weights(version=1, newest=2, has_free_slot=True)) == "install"
    assert ONE_SLOT.refresh(weights(version=4, newest=2, has_free_slot=False, epoch=1)) == "drain"


@pytest.mark.parametrize(
    ("rollout", "slots", "in_flight"),
    [
        ({}, 2, "pin"),
        ({"weight_slots": 1}, 1, "drain"),
        ({"engine": "vllm"}, 1, "drain"),
        ({"weight_slots": 3}, 3, "pin"),
        ({"engine": "vllm", "lora_rank": 8}, 2, "pin"),
        ({"engine": "vllm", "lora_rank": 8, "weight_slots": 1}, 1, "drain"),
        ({"engine": "vllm", "lora_rank": 8, "weight_slots": 3}, 3, "pin"),
        ({"engine": "vllm", "lora_rank": 8, "steps": 0}, 1, "drain"),
        ({"engine": "vllm", "lora_rank": 513}, 1, "drain"),
    ],
)
def test_job_sets_how_many_versions_a_replica_holds(rollout: dict[str, Any], slots: int, in_flight: str) -> None:
    plan = Plan.from_spec(_slots(**rollout))
    assert (plan.weight_slots, plan.schedule.in_flight) == (slots, in_flight)


def _slots(*, lora_rank: int = 0, steps: int = 4, **rollout: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "slots", "trainer": {"lora_rank": lora_rank}, "training": {"steps": steps}, "rollout": rollout}
    )


@pytest.mark.parametrize("lora_rank", [0, 513])
def test_vllm_rejects_several_versions_without_adapters(lora_rank: int) -> None:
    with pytest.raises(ValueError, match=r"rollout.weight_slots must be 1 with vllm, .*lora_rank 1 to 512\); got 2"):
        _slots(engine="vllm", weight_slots=2, lora_rank=lora_rank)


@pytest.mark.parametrize(
    ("spec", "kv_tokens"),
    [
        ({}, 500),
        ({"weight_slots": 4}, 250),
        ({"engine": "vllm"}, 1_000),
        ({"engine": "vllm", "lora_rank": 8, "weight_slots": 4}, 1_000),
    ],
)
def test_adapters_share_a_cache_and_engines_divide_it(spec: dict[str, Any], kv_tokens: int) -> None:
    assert kv_tokens_of_a_slot(_slots(**spec, kv_tokens=1_000)) == kv_tokens


def test_only_laminar_holds_several_versions() -> None:
    several = {name for name in SCHEDULES if schedule_for(ScheduleSpec(name=name), weight_slots=3).in_flight == "pin"}
    assert several == {"laminar"}


@pytest.mark.parametrize("name", ["partial", "inflight"])
def test_new_weights_are_installed_under_running_work(name: str) -> None:
    assert PRESETS[name].refresh(weights(version=1, newest=2, has_free_slot=False)) == "install"
    assert not PRESETS[name].keeps_version


def test_a_bound_on_staleness_tightens_every_answer() -> None:
    bounded = schedule_for(ScheduleSpec(name="laminar", max_staleness=1), weight_slots=1)
    assert not bounded.may_start(demand(num_open=8), lag=0)
    assert not bounded.may_start(demand(num_open=0), lag=2)
    assert bounded.may_train(staleness=1) and not bounded.may_train(staleness=2)
    assert bounded.refresh_lag == 1


@pytest.mark.parametrize("name", ["laminar", "partial", "bounded", "inflight", "paper"])
def test_without_a_bound_of_its_own_a_job_has_the_schedules(name: ScheduleName) -> None:
    preset = schedule_for(ScheduleSpec(name=name), weight_slots=2)
    assert preset.may_train(staleness=8) and not preset.may_train(staleness=9)
    assert preset.may_start(demand(num_open=0), lag=8) and not preset.may_start(demand(num_open=0), lag=9)
    assert schedule_for(ScheduleSpec(name=name, max_staleness=20), weight_slots=2).may_train(staleness=20)


def test_a_looser_bound_does_not_loosen_sync() -> None:
    assert schedule_for(ScheduleSpec(name="sync", max_staleness=5), weight_slots=1) == SYNC


@pytest.mark.parametrize("name", ["one_step", "stream"])
def test_windows_with_a_bound_of_zero_are_sync(name: ScheduleName) -> None:
    tightened = schedule_for(ScheduleSpec(name=name, max_staleness=0), weight_slots=1)
    assert (tightened.lead_steps, tightened.window_steps, tightened.max_staleness) == (0, 1, 0)


def test_a_bound_takes_the_window_ahead_away_first() -> None:
    tightened = schedule_for(ScheduleSpec(name="stream", max_staleness=2), weight_slots=1)
    assert (tightened.lead_steps, tightened.window_steps) == (1, 2)


@pytest.mark.parametrize("name", ["laminar", "partial", "bounded", "inflight", "paper"])
def test_job_sets_how_far_generation_runs_ahead(name: ScheduleName) -> None:
    none, three = (schedule_for(ScheduleSpec(name=name, lead_steps=lead), weight_slots=2) for lead in (0, 3))
    assert none.may_start(demand(num_open=3), lag=0) and not none.may_start(demand(num_open=4), lag=0)
    assert three.may_start(demand(num_open=15), lag=0) and not three.may_start(demand(num_open=16), lag=0)


def test_lead_beyond_the_staleness_bound_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"schedule.lead_steps must be at most schedule.max_staleness, which is 1"):
        JobSpec.model_validate({"name": "t", "schedule": {"lead_steps": 2, "max_staleness": 1}})
    with pytest.raises(ValidationError, match="has no effect") as refusal:
        JobSpec.model_validate({"name": "t", "schedule": {"name": "sync", "lead_steps": 2}})
    assert refusal.value.error_count() == 1, "one field, one reason"


def test_repack_is_off_by_a_switch() -> None:
    assert LAMINAR.repack and not schedule_for(ScheduleSpec(name="laminar", repack=False), weight_slots=1).repack
    assert not schedule_for(ScheduleSpec(name="sync", repack=True), weight_slots=1).repack


def test_a_batch_is_whole_or_absent_and_first_in_first_out() -> None:
    assert oldest_first(3, num_groups=4) is None
    assert oldest_first(3, num_groups=2) == range(2)


def test_equal_rewards_are_no_signal() -> None:
    assert not has_signal([1.0, 1.0]) and has_signal([1.0, 0.0])


def test_a_run_breaks_when_a_kind_of_part_is_gone_for_good() -> None:
    assert not breaks_the_run({"rollout"}, left={"data", "trainer", "rollout"})
    assert breaks_the_run({"rollout"}, left={"data", "trainer"})
    assert breaks_the_run({"data"}, left={"trainer", "rollout"})


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
