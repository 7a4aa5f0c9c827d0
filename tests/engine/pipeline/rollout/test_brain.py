"""A replica: installs into free slots, keeps results until confirmed, and obeys the higher of two leases."""

from dataclasses import replace
from typing import Any

from engine.pipeline.effects import Effect, InstallWeights, ReportProgress, StartSequences, StopSequences
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import ProgressStreamed, ReplicaSynced
from engine.pipeline.messages.to_driver import FaultReported, ReplicaReady
from engine.pipeline.messages.to_manager import ReplicaLeft, ReplicaReported
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import (
    InstallRefused,
    LeaveRequested,
    LoadMeasured,
    ProgressReported,
    TrajectoriesEnded,
    VersionAnnounced,
    VersionMissing,
    WeightsInstalled,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupKey, GroupTask, HeldGroup, ResidentLoad, SampleKey, Trajectory
from engine.pipeline.rollout.brain import RolloutBrain
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.schedule import PRESETS
from tests.engine.pipeline.brain_builders import BESIDE, PLAN, of, sample_progress, served

KEY = GroupKey(ordinal=0)
TASK = GroupTask(key=KEY, samples=(0, 1), lease=5)
OLD = GroupTask(key=KEY, samples=(0, 1), lease=4)
V0, V1, V2 = WeightsId(0, 0), WeightsId(0, 1), WeightsId(0, 2)
BARRIER = replace(PLAN, schedule=PRESETS["sync"])


def grant(*tasks: GroupTask, **fields: Any) -> WorkGranted:
    return WorkGranted(incarnation=0, tasks=tasks, **fields)


def ended(sample: int, version: int = 0) -> TrajectoriesEnded:
    key = SampleKey(group=KEY, sample=sample)
    return TrajectoriesEnded(
        trajectories=(Trajectory(key=key, weights=WeightsId(0, version), reward=0.0, num_tokens=3),)
    )


def ready(plan: Plan = PLAN) -> RolloutBrain:
    brain = RolloutBrain(plan, replica=0, incarnation=0)
    brain.handle(Tick(), 0.0)
    brain.handle(served(0), 0.0)
    brain.handle(WeightsInstalled(weights=V0), 0.0)
    return brain


def running(plan: Plan = PLAN) -> RolloutBrain:
    brain = ready(plan)
    assert of(brain.handle(grant(TASK), 1.0), StartSequences)
    return brain


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_replica_pulls_weights_reports_ready_then_wants_work() -> None:
    brain = RolloutBrain(PLAN, replica=0, incarnation=0)
    assert of(brain.handle(Tick(), 0.0), WeightsWanted)[0].held == NO_WEIGHTS
    assert of(brain.handle(served(0), 0.1), InstallWeights)
    effects = brain.handle(WeightsInstalled(weights=V0), 0.2)
    assert of(effects, ReplicaReady)
    assert of(effects, ReplicaSynced)[0].wants == 8


def test_weights_are_installed_only_while_nothing_runs() -> None:
    brain = running(BARRIER)
    assert of(brain.handle(VersionAnnounced(weights=V1), 1.1), WeightsWanted) == []
    assert of(brain.handle(served(1), 1.2), InstallWeights) == []
    brain.handle(ended(0), 1.3)
    effects = brain.handle(ended(1), 1.4)
    assert of(effects, WeightsWanted)[0].held == V0
    assert of(brain.handle(served(1), 1.5), InstallWeights)


def test_weights_change_at_once_if_work_may_mix_versions() -> None:
    brain = running(replace(PLAN, schedule=PRESETS["partial"]))
    assert of(brain.handle(VersionAnnounced(weights=V1), 1.1), WeightsWanted)
    assert of(brain.handle(served(1), 1.2), InstallWeights)[0].in_flight == "reprefill"


def test_replica_stops_asking_for_work_when_weights_are_due() -> None:
    for plan, version in ((BARRIER, 1), (PLAN, 2)):
        brain = running(plan)
        brain.handle(VersionAnnounced(weights=WeightsId(0, version)), 1.1)
        (sync,) = of(brain.handle(ended(0), 1.2), ReplicaSynced)
        assert (sync.wants, sync.room) == (0, 7)


def test_slightly_old_weights_still_start_fresh_work() -> None:
    brain = running()
    brain.handle(VersionAnnounced(weights=V1), 1.1)
    assert of(brain.handle(ended(0), 1.2), ReplicaSynced)[0].wants == 7


def test_weights_of_a_new_trainer_are_newer_than_a_dead_ones() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(weights=WeightsId(0, 5)), 0.5)
    brain.handle(served(5), 0.6)
    brain.handle(WeightsInstalled(weights=WeightsId(0, 5)), 0.7)
    assert of(brain.handle(served(5), 0.8), InstallWeights) == []
    assert of(brain.handle(served(3, epoch=1), 1.0), InstallWeights)


def test_rejected_bytes_are_a_fault_and_requested_again() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(weights=V1), 1.0)
    brain.handle(served(1), 1.1)
    assert of(brain.handle(InstallRefused(weights=V1, reason="hash"), 1.2), FaultReported)
    assert of(brain.handle(Tick(), 4.0), WeightsWanted)


def test_a_lost_announcement_is_made_up_for() -> None:
    assert of(ready().handle(Tick(), 6.0), WeightsWanted)[0].held == V0


def test_replica_requests_weights_from_the_relay_on_its_host() -> None:
    brain = RolloutBrain(replace(PLAN, num_relays=2), replica=3, incarnation=0)
    assert [effect.to for effect in brain.handle(Tick(), 0.0)] == [relay_address(1)]  # type: ignore[union-attr]


def test_evaluation_holds_a_replica_at_its_version_until_done() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(weights=WeightsId(0, 3)), 1.0)
    (wanted,) = of(brain.handle(grant(to_hold=V2), 1.1), WeightsWanted)
    assert wanted.exact == V2
    assert of(brain.handle(served(3), 1.2), InstallWeights) == []
    assert of(brain.handle(served(2), 1.3), InstallWeights)
    (sync,) = of(brain.handle(WeightsInstalled(weights=V2), 1.4), ReplicaSynced)
    assert (sync.weights, sync.wants, sync.ordered_weights) == (V2, 8, V2)
    (wanted,) = of(brain.handle(grant(to_hold=None), 1.5), WeightsWanted)
    assert wanted.exact is None


def test_a_version_that_no_relay_has_is_reported() -> None:
    brain = ready()
    brain.handle(grant(to_hold=V2), 1.0)
    (sync,) = of(brain.handle(VersionMissing(weights=V2), 1.1), ReplicaSynced)
    assert sync.missing == V2


# ── weights side by side ──────────────────────────────────────────────────────────────────────────────────────────────

OTHER = GroupTask(key=GroupKey(ordinal=1), samples=(0, 1), lease=6)


def pinned() -> RolloutBrain:
    """One group runs on version 0; version 1 is installed for fresh work."""
    brain = running(BESIDE)
    brain.handle(VersionAnnounced(weights=V1), 1.1)
    (install,) = of(brain.handle(served(1), 1.2), InstallWeights)
    assert install.keeps == (V0,)
    brain.handle(WeightsInstalled(weights=V1), 1.3)
    return brain


def test_newer_weights_are_installed_next_to_those_in_use() -> None:
    brain = running(BESIDE)
    assert of(brain.handle(VersionAnnounced(weights=V1), 1.1), WeightsWanted)
    assert of(brain.handle(served(1), 1.2), InstallWeights)
    (sync,) = of(brain.handle(WeightsInstalled(weights=V1), 1.3), ReplicaSynced)
    assert (sync.weights, sync.older, sync.wants) == (V1, (V0,), 6)
    assert sync.groups[0].weights == V0


def test_fresh_work_starts_on_newest_and_the_rest_stays() -> None:
    brain = pinned()
    (start,) = of(brain.handle(grant(OTHER), 1.4), StartSequences)
    assert start.tasks[0].exact == V1
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert {held.key: held.weights for held in sync.groups} == {KEY: V0, OTHER.key: V1}


CAPPED = replace(BESIDE, schedule=replace(BESIDE.schedule, age_cap=5))


def capped(key: GroupKey = KEY) -> RolloutBrain:
    """Work on V0 and on V1, with no free slot."""
    brain = ready(CAPPED)
    brain.handle(grant(replace(TASK, key=key, exact=V0)), 1.0)
    brain.handle(VersionAnnounced(weights=V1), 1.1)
    brain.handle(served(1), 1.2)
    brain.handle(WeightsInstalled(weights=V1), 1.3)
    brain.handle(grant(OTHER), 1.4)
    return brain


def test_age_cap_overwrites_only_weights_that_leave_no_slot() -> None:
    brain = capped()
    assert of(brain.handle(VersionAnnounced(weights=V2), 1.5), WeightsWanted)
    (install,) = of(brain.handle(served(2), 1.6), InstallWeights)
    assert (install.over, install.keeps, install.in_flight) == (V0, (V1,), "keep")
    late = replace(TASK, key=GroupKey(ordinal=8), samples=(0,))
    assert of(brain.handle(grant(replace(late, exact=V0)), 1.7), StartSequences) == [], "V0 is being overwritten"
    assert of(brain.handle(grant(replace(late, exact=V1)), 1.8), StartSequences)
    brain.handle(WeightsInstalled(weights=V2), 1.9)
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert (sync.weights, sync.older) == (V2, (V1,))
    assert {held.key: held.weights for held in sync.groups} == {KEY: V2, OTHER.key: V1, late.key: V1}


def test_rejected_weights_overwrite_nothing() -> None:
    brain = capped()
    brain.handle(VersionAnnounced(weights=V2), 1.5)
    brain.handle(served(2), 1.6)
    brain.handle(InstallRefused(weights=V2, reason="torn"), 1.7)
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert {held.key: held.weights for held in sync.groups} == {KEY: V0, OTHER.key: V1}


def test_evaluation_ends_on_its_own_weights_despite_age_cap() -> None:
    evaluated = GroupKey(ordinal=0, evaluation=0)
    brain = capped(evaluated)
    brain.handle(VersionAnnounced(weights=V2), 1.5)
    (install,) = of(brain.handle(served(2), 1.6), InstallWeights)
    assert (install.over, install.keeps) == (V1, (V0,))
    brain.handle(WeightsInstalled(weights=V2), 1.7)
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert {held.key: held.weights for held in sync.groups} == {evaluated: V0, OTHER.key: V2}


def test_first_free_slot_takes_the_newest_and_used_ones_stay() -> None:
    brain = pinned()
    brain.handle(grant(OTHER), 1.4)
    assert of(brain.handle(VersionAnnounced(weights=WeightsId(0, 3)), 1.5), WeightsWanted) == []
    assert of(brain.handle(served(3), 1.6), InstallWeights) == []
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert sync.wants == 4, "and nothing drains for it"
    brain.handle(ended(0), 4.1)
    assert of(brain.handle(ended(1), 4.2), WeightsWanted)
    (install,) = of(brain.handle(served(3), 4.3), InstallWeights)
    assert install.keeps == (V1,)


def test_last_free_slot_is_kept_for_announced_weights() -> None:
    brain = pinned()
    brain.handle(VersionAnnounced(weights=V2), 1.5)
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert (sync.weights, sync.wants, sync.room) == (V1, 0, 6), (
        "nothing runs on version 1 yet: version 2 takes its place"
    )
    brain.handle(served(2), 4.1)
    (sync,) = of(brain.handle(WeightsInstalled(weights=V2), 4.2), ReplicaSynced)
    assert (sync.weights, sync.older, sync.wants) == (V2, (V0,), 6)


def test_during_an_install_only_kept_weights_take_work() -> None:
    brain = pinned()
    brain.handle(VersionAnnounced(weights=V2), 1.5)
    assert of(brain.handle(served(2), 1.6), InstallWeights)
    assert of(brain.handle(grant(OTHER), 1.7), StartSequences) == [], "version 1 is being overwritten"
    old = replace(OTHER, exact=V0)
    assert of(brain.handle(grant(old), 1.8), StartSequences)[0].tasks[0].exact == V0


def test_late_samples_run_on_the_weights_of_their_group() -> None:
    brain = pinned()
    more = GroupTask(key=KEY, samples=(0, 1, 2), lease=5)
    (start,) = of(brain.handle(grant(more), 1.4), StartSequences)
    assert (start.tasks[0].samples, start.tasks[0].exact) == ((2,), V0)


def test_evaluation_on_weights_in_use_needs_no_second_copy() -> None:
    brain = pinned()
    effects = brain.handle(grant(to_hold=V0), 1.4)
    assert of(effects, WeightsWanted) == []
    (sync,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert (sync.weights, sync.ordered_weights) == (V0, V0)


def test_load_is_reported_for_each_version() -> None:
    brain = pinned()
    brain.handle(grant(OTHER), 1.4)
    load = LoadMeasured(kv_used=0.5, num_tokens=9, kv_by_weights=((V0, 0.2), (V1, 0.3)))
    (report,) = of(brain.handle(load, 1.5), ReplicaReported)
    assert (report.weights, report.num_running, report.has_free_slot) == (V1, 4, False)
    assert report.older == (ResidentLoad(weights=V0, num_running=2, kv_used=0.2),)


# ── what ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_finished_trajectory_is_delivered_until_confirmed() -> None:
    brain = running()
    (sync,) = of(brain.handle(ended(0), 1.2), ReplicaSynced)
    assert len(sync.finished) == 1 and sync.groups == (HeldGroup(key=KEY, lease=5, samples=(0, 1), weights=V0),)
    assert of(brain.handle(Tick(), 1.3), ReplicaSynced) == []
    (again,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert again.finished == sync.finished
    brain.handle(grant(taken=(sync.finished[0].key,)), 4.1)
    (last,) = of(brain.handle(Tick(), 7.0), ReplicaSynced)
    assert last.finished == ()


def test_news_are_gathered_while_others_run() -> None:
    brain = ready()
    brain.handle(grant(TASK, GroupTask(key=GroupKey(ordinal=1), samples=(0,), lease=6)), 1.0)
    assert of(brain.handle(ended(0), 1.10), ReplicaSynced)
    assert of(brain.handle(ended(1), 1.11), ReplicaSynced) == []
    assert len(of(brain.handle(Tick(), 1.16), ReplicaSynced)[0].finished) == 1


def test_progress_of_samples_is_streamed_periodically() -> None:
    brain = running(replace(PLAN, stream_every_s=2.0))
    assert of(brain.handle(Tick(), 3.0), ReportProgress) == [], "samples that have just begun are left out"
    brain.handle(grant(GroupTask(key=GroupKey(ordinal=1), samples=(0,), lease=6)), 4.0)
    assert of(brain.handle(Tick(), 4.9), ReportProgress) == []
    (ask,) = of(brain.handle(Tick(), 5.0), ReportProgress)
    assert [acknowledged.key for acknowledged in ask.acknowledged] == [
        SampleKey(group=KEY, sample=sample) for sample in (0, 1)
    ]
    assert len(of(brain.handle(Tick(), 7.0), ReportProgress)[0].acknowledged) == 3
    progress = (sample_progress(KEY, 0, num_tokens=9),)
    (streamed,) = of(brain.handle(ProgressReported(progress=progress), 4.1), ProgressStreamed)
    assert (streamed.replica, streamed.progress) == (0, progress)


def test_its_load_goes_to_the_manager() -> None:
    (report,) = of(running().handle(LoadMeasured(kv_used=0.5, num_tokens=9), 1.1), ReplicaReported)
    assert (report.num_running, report.kv_used, report.weights) == (2, 0.5, V0)


# ── grants that start nothing ─────────────────────────────────────────────────────────────────────────────────────────


def test_sample_granted_twice_runs_once() -> None:
    brain = running()
    assert of(brain.handle(grant(TASK), 1.1), StartSequences) == []
    brain.handle(ended(0), 1.2)
    assert of(brain.handle(grant(TASK), 1.3), StartSequences) == []


def test_higher_lease_takes_over_work_under_a_lower_one() -> None:
    brain = running()
    assert of(brain.handle(grant(replace(TASK, lease=9)), 1.1), StartSequences) == []
    (sync,) = of(brain.handle(ended(0), 1.2), ReplicaSynced)
    assert sync.groups[0].lease == 9


def test_a_grant_with_a_lower_lease_starts_nothing() -> None:
    brain = running()
    assert of(brain.handle(grant(OLD), 1.1), StartSequences) == []
    brain.handle(grant(revoked=(HeldGroup(key=KEY, lease=5, samples=()),)), 1.2)
    assert of(brain.handle(grant(OLD), 1.3), StartSequences) == []
    assert of(brain.handle(grant(TASK), 1.4), StartSequences) == [], "nor does the revoked lease"
    assert of(brain.handle(grant(replace(TASK, lease=6)), 1.5), StartSequences)


def test_a_grant_for_an_earlier_incarnation_starts_nothing() -> None:
    assert of(ready().handle(replace(grant(TASK), incarnation=7), 1.0), StartSequences) == []


def test_grant_during_an_install_starts_nothing() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(weights=V1), 1.0)
    assert of(brain.handle(served(1), 1.1), InstallWeights)
    assert of(brain.handle(grant(TASK), 1.2), StartSequences) == []


def test_work_for_weights_that_are_not_held_is_not_started() -> None:
    task = GroupTask(key=GroupKey(ordinal=0, evaluation=5), samples=(0,), lease=1, exact=WeightsId(0, 5))
    assert of(ready().handle(grant(task), 1.0), StartSequences) == []


def test_revoked_work_stops_and_is_no_longer_listed() -> None:
    brain = running()
    effects = brain.handle(grant(revoked=(HeldGroup(key=KEY, lease=5, samples=(0, 1)),)), 1.2)
    assert of(effects, StopSequences)[0].groups == (HeldGroup(key=KEY, lease=5, samples=(0, 1), weights=V0),)
    assert of(effects, ReplicaSynced)[0].groups == ()


def test_work_revoked_under_a_lower_lease_continues() -> None:
    effects = running().handle(grant(revoked=(HeldGroup(key=KEY, lease=4, samples=(0, 1)),)), 1.2)
    assert of(effects, StopSequences) == []


def test_fast_replica_asks_for_places_about_to_be_free() -> None:
    def wants_after(seconds_between: float) -> int:
        brain, now = running(), 1.1
        effects: list[Effect] = []
        for ordinal in range(30):
            now += seconds_between
            key = GroupKey(ordinal=ordinal + 10)
            effects += brain.handle(grant(GroupTask(key=key, samples=(0, 1, 2, 3), lease=1)), now)
            over = tuple(
                Trajectory(key=SampleKey(group=key, sample=sample), weights=V0, reward=0.0, num_tokens=3)
                for sample in range(4)
            )
            effects += brain.handle(TrajectoriesEnded(trajectories=over), now)
        last: ReplicaSynced = of(effects, ReplicaSynced)[-1]
        return last.wants - last.room

    assert wants_after(1.0) == 0 < wants_after(0.06)


# ── leaving ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def leaving() -> RolloutBrain:
    brain = running()
    brain.handle(LeaveRequested(incarnation=0, within_s=10.0), 2.0)
    return brain


def test_a_replica_that_leaves_takes_nothing_more() -> None:
    brain = leaving()
    other = GroupTask(key=GroupKey(ordinal=1), samples=(0,), lease=9)
    assert of(brain.handle(grant(other), 3.0), StartSequences) == []
    (sync,) = of(brain.handle(Tick(), 5.0), ReplicaSynced)
    assert (sync.is_leaving, sync.wants, sync.room) == (True, 0, 0)


def test_replica_without_weights_leaves_at_once() -> None:
    brain = RolloutBrain(PLAN, replica=0, incarnation=0)
    left = ReplicaLeft(replica=0, incarnation=0)
    assert of(brain.handle(LeaveRequested(incarnation=0, within_s=10.0), 2.0), ReplicaLeft) == [left]
    effects = brain.handle(Tick(), 4.0)
    assert of(effects, ReplicaLeft) == [left], "the message may have been lost"
    assert not of(effects, WeightsWanted)


def test_leaving_replica_stops_unmoved_samples_in_time() -> None:
    brain = leaving()
    assert of(brain.handle(Tick(), 11.0), StopSequences) == []
    (stop,) = of(brain.handle(Tick(), 12.5), StopSequences)
    assert stop.reports and stop.groups[0].samples == (0, 1)
    progress = (sample_progress(KEY, 0, num_tokens=4), sample_progress(KEY, 1, num_tokens=2))
    (sync,) = of(brain.handle(ProgressReported(progress=progress, is_stopped=True), 12.6), ReplicaSynced)
    assert sync.progress == progress and sync.groups == ()


def test_replica_has_left_when_empty_and_released_by_data() -> None:
    brain = leaving()
    assert of(brain.handle(grant(is_released=True), 3.0), ReplicaLeft) == [], "it holds something"
    for sample in (0, 1):
        brain.handle(ended(sample), 4.0)
    taken = tuple(SampleKey(group=KEY, sample=sample) for sample in (0, 1))
    assert of(brain.handle(grant(taken=taken), 5.0), ReplicaLeft) == []
    assert of(brain.handle(grant(is_released=True), 6.0), ReplicaLeft)
    assert of(brain.handle(Tick(), 7.0), ReplicaLeft), "repeated, in case it was lost"
