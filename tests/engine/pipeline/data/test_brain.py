"""Data: prompts out, groups in, batches to the trainer, one end for each."""

from dataclasses import replace

import pytest

from engine.environments.port import Blame
from engine.pipeline.data.resending import BATCH_LOST_AFTER_S
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, TrainingEnded
from engine.pipeline.messages.to_driver import (
    EvaluationReported,
    FaultReported,
    LedgerReported,
    PartFinished,
    RunBroken,
    SamplesEnded,
)
from engine.pipeline.messages.to_relay import VersionReleased
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress, Failure
from engine.policy.lineage import WeightsId
from engine.policy.schedule import PRESETS, schedule_for
from engine.spec.causes import PlatformCause
from engine.spec.job import ScheduleSpec
from tests.engine.pipeline.brain_builders import PLAN, DataWithDisk, answers, granted, holding, keys_of, of, to_replica

CAPPED = replace(PLAN, schedule=schedule_for(ScheduleSpec(name="laminar", max_staleness=0), weight_slots=1))


# ── evaluations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_first_evaluation_runs_in_parallel_with_training() -> None:
    data = DataWithDisk()
    held_out = granted(data.sync(wants=1))
    assert [task.key.split for task in held_out] == ["held_out"], "its prompts come first"
    more = granted(data.sync(wants=8, groups=holding(held_out)))
    assert [task.key.split for task in more] == ["held_out", "train", "train", "train", "train"]
    held_out, trained = held_out + more[:1], more[1:]
    effects = data.sync(wants=0, groups=holding(held_out), finished=answers(trained))
    assert of(effects, EvaluationReported) == [] and len(data.batch(1)) == 1, "training waits for no evaluation"
    data.batch(2)
    late = data.sync(version=1, wants=0, older=(WeightsId(0, 0),), finished=answers(held_out))
    assert of(late, EvaluationReported) == [
        EvaluationReported(
            weights=WeightsId(0, 0), num_prompts=2, reward_mean=1.0, reward_std=0.0, length_mean=5.0, pass_rate=1.0
        )
    ]
    assert of(late, VersionReleased) == [VersionReleased(weights=WeightsId(0, 0))]


def test_only_the_wanted_weights_answer_an_evaluation() -> None:
    data = DataWithDisk()

    def held_out(replica: int, version: int) -> list[WeightsId | None]:
        tasks = granted(data.sync(replica, version=version))
        return [task.exact for task in tasks if task.key.evaluation is not None]

    assert held_out(0, version=1) == []
    assert held_out(1, version=0) == [WeightsId(0, 0)] * 2


def test_evaluation_orders_idle_replica_to_hold_its_version() -> None:
    data = DataWithDisk(replace(PLAN, evaluate_every=1)).past_the_evaluation()
    data.train(1)
    (grant,) = to_replica(data.handle(BatchWanted(step=2)), 0)
    assert grant.to_hold == WeightsId(0, 1) and grant.tasks == ()
    tasks = granted(data.sync(version=1, wants=8, ordered_weights=WeightsId(0, 1)))
    assert [task.exact for task in tasks[:2]] == [WeightsId(0, 1)] * 2


def test_evaluation_of_lost_version_reports_newer_weights() -> None:
    data = DataWithDisk()
    tasks = granted(data.sync(version=4, wants=8, missing=WeightsId(0, 0)))
    assert {task.exact for task in tasks} == {None}
    effects = data.sync(version=4, wants=0, finished=answers(tasks, version=4))
    assert of(effects, FaultReported)[0].action == "2 answers are by newer weights"


def test_a_graders_failure_is_no_reward_of_zero() -> None:
    data = DataWithDisk()
    tasks = granted(data.sync())
    effects = data.sync(wants=0, finished=(*answers(tasks[:1]), *answers(tasks[1:], failure="timeout")))
    (report,) = of(effects, EvaluationReported)
    assert (report.num_prompts, report.reward_mean) == (1, 1.0)
    assert "1 held-out answers could not be graded: timeout" in of(effects, FaultReported)[0].message


def test_untrusted_held_out_rewards_count_as_zero() -> None:
    data = DataWithDisk()
    tasks = granted(data.sync())
    doubtful = [replace(each, reward=5.0, trusted=False) for each in answers(tasks[1:])]
    effects = data.sync(wants=0, finished=(*answers(tasks[:1]), *doubtful))
    (report,) = of(effects, EvaluationReported)
    assert (report.num_prompts, report.reward_mean) == (2, 0.5)
    assert "1 held-out rewards are not trusted" in of(effects, FaultReported)[0].message


# ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_full_replica_gets_nothing_and_the_last_place_is_used() -> None:
    data = DataWithDisk(replace(PLAN, groups_per_step=8)).past_the_evaluation()
    assert len(granted(data.sync(wants=4))) == 2
    assert len(granted(data.sync(1, wants=5))) == 3, "one sample of the last group waits there"
    assert granted(data.sync(1, wants=1, room=1)) == [], "pending grants take more than that"


def test_group_larger_than_a_replica_goes_to_an_empty_one() -> None:
    data = DataWithDisk(replace(PLAN, group_size=20)).past_the_evaluation()
    assert [len(task.samples) for task in granted(data.sync(wants=8))] == [20]
    assert granted(data.sync(wants=8)) == []


def test_pending_grants_take_up_room() -> None:
    data = DataWithDisk().past_the_evaluation()
    assert len(granted(data.sync(wants=4))) == 2
    assert granted(data.sync(wants=4, groups=())) == []


def test_schedule_bounds_the_open_groups() -> None:
    data = DataWithDisk(replace(PLAN, max_batch=80)).past_the_evaluation()
    for _ in range(5):
        data.sync(wants=0, finished=answers(granted(data.sync(wants=80))))
    assert data.counts["open"] == 3 * PLAN.groups_per_step * PLAN.group_size


def test_open_groups_are_bounded_over_all_replicas() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.sync(0, wants=0)
    data.sync(1, wants=0)
    first = granted(data.sync(0, wants=8))
    second = granted(data.sync(1, wants=8))
    assert len(first) == 4 and len(second) == 2, "three steps' worth are open, no more"


def test_a_grant_that_was_lost_is_granted_again() -> None:
    data = DataWithDisk().past_the_evaluation()
    tasks = granted(data.sync(wants=4))
    data.now = 4.0
    assert granted(data.sync(wants=4, groups=())) == tasks


def test_an_old_sync_that_comes_late_changes_nothing() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.sync(wants=0, serial=100)
    assert granted(data.sync(wants=8, serial=50)) == []


def test_a_barrier_starts_a_step_only_on_the_newest_weights() -> None:
    data = DataWithDisk(replace(PLAN, schedule=PRESETS["sync"])).past_the_evaluation()
    data.train(1)
    data.handle(BatchWanted(step=2))
    assert granted(data.sync(0, version=0)) == []
    (grant,) = to_replica(data.sync(1, version=1), 1)
    assert len(grant.tasks) == 2, "one step's worth"


def test_unfinished_window_holds_replicas_at_its_weights() -> None:
    data = DataWithDisk(replace(PLAN, schedule=PRESETS["stream"], max_batch=80)).past_the_evaluation()
    (grant,) = to_replica(data.sync(wants=2), 0)
    assert len(grant.tasks) == 1 and grant.to_hold == WeightsId(0, 0)
    (grant,) = to_replica(data.sync(wants=6, groups=holding(grant.tasks), ordered_weights=grant.to_hold), 0)
    assert len(grant.tasks) == 3 and grant.to_hold is None, "two steps' worth are begun"


# ── batches and ends ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_arrive_whole_and_a_step_keeps_its_batch() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.handle(BatchWanted(step=1))
    samples = answers(granted(data.sync(wants=8)))
    assert of(data.sync(wants=0, finished=samples[:3]), BatchReady) == []
    (batch,) = of(data.sync(wants=0, finished=samples[3:4]), BatchReady)
    assert [len(group.trajectories) for group in batch.groups] == [2, 2]
    data.wait(BATCH_LOST_AFTER_S)
    assert data.batch(1) == [batch]


def test_a_sample_delivered_twice_counts_once() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.handle(BatchWanted(step=1))
    samples = answers(granted(data.sync(wants=8)))
    data.sync(wants=0, finished=samples[:2])
    data.sync(wants=0, finished=samples[:2])
    (batch,) = of(data.sync(wants=0, finished=(*samples[:2], *samples[2:4])), BatchReady)
    assert len(set(keys_of(batch))) == 4


def test_stale_groups_are_dropped_with_a_reason_and_replaced() -> None:
    data = DataWithDisk(CAPPED).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    data.sync(wants=0, finished=answers(granted(data.sync(wants=8))))
    data.handle(BatchWanted(step=2))
    stale = granted(data.sync(version=1, wants=8))
    effects = data.sync(version=1, wants=8, finished=answers(stale, version=0))
    assert of(effects, BatchReady) == []
    assert len(granted(effects)) == len(stale)
    assert data.counts == {"trained": 4, "filtered": 0, "dropped_stale": 4, "failed": 0, "open": 4}
    data.sync(version=1, wants=0, finished=answers(granted(effects), version=1))
    [ended] = of(data.handle(BatchWanted(step=3)), SamplesEnded)
    [read] = ended.to_read
    assert (ended.step, read.end, read.staleness) == (2, "dropped_stale", 1) and "1 versions old" in read.reason


def test_batch_is_resent_only_after_a_growing_interval() -> None:
    data = DataWithDisk().past_the_evaluation()
    data.handle(BatchWanted(step=1))
    sent = of(data.sync(wants=0, finished=answers(granted(data.sync(wants=4)))), BatchReady)
    for _ in range(4):
        sent += of(data.handle(BatchWanted(step=1)), BatchReady)
    assert len(sent) == 1
    for wait_s, num_sent in ((2.0, 2), (2.0, 2), (2.0, 3)):
        data.wait(wait_s)
        sent += of(data.handle(BatchWanted(step=1)), BatchReady)
        assert len(sent) == num_sent, "lost after 2 s, and then after 4 s"


def test_a_group_without_a_signal_is_filtered_and_replaced() -> None:
    data = DataWithDisk(replace(PLAN, filters=True)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    tasks = granted(data.sync(wants=4))
    effects = data.sync(wants=8, finished=answers(tasks))
    assert of(effects, BatchReady) == [] and data.counts["filtered"] == 4
    mixed = granted(effects)[:2]
    worth = [replace(answer, reward=float(answer.key.sample)) for answer in answers(mixed)]
    assert of(data.sync(wants=0, finished=tuple(worth)), BatchReady)


def test_rewards_that_are_not_trusted_are_no_signal() -> None:
    data = DataWithDisk(replace(PLAN, filters=True)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    tasks = granted(data.sync(wants=4))
    worth = [replace(each, reward=float(each.key.sample), trusted=each.key.sample == 0) for each in answers(tasks)]
    assert of(data.sync(wants=0, finished=tuple(worth)), BatchReady) == [] and data.counts["filtered"] == 4


def test_with_a_spare_the_first_samples_to_come_make_the_group() -> None:
    data = DataWithDisk(replace(PLAN, num_spare=1, groups_per_step=1)).past_the_evaluation()
    data.handle(BatchWanted(step=1))
    (task,) = granted(data.sync(wants=3))
    assert task.samples == (0, 1, 2)
    failed, *graded = answers([task])
    effects = data.sync(
        wants=0, finished=(replace(failed, failure=Failure(kind="error", reason="no sandbox")), *graded)
    )
    (batch,) = of(effects, BatchReady)
    assert [key.sample for key in keys_of(batch)] == [1, 2]


def test_a_group_that_cannot_become_whole_fails() -> None:
    data = DataWithDisk().past_the_evaluation()
    tasks = granted(data.sync(wants=4))
    data.sync(wants=0, finished=answers(tasks[:1], failure="timeout")[:1])
    assert data.counts["failed"] == 2


def test_a_grader_that_fails_on_most_groups_breaks_the_run() -> None:
    data = DataWithDisk(replace(PLAN, max_batch=80)).past_the_evaluation()
    broken: list[RunBroken] = []
    for _ in range(10):
        tasks = granted(data.sync(wants=80))
        broken += of(data.sync(wants=0, finished=answers(tasks, failure="no sandbox")), RunBroken)
    assert broken and broken[0].failure_class == "reward" and "no sandbox" in broken[0].message


@pytest.mark.parametrize("blame", ["user_code", "reward", "infrastructure", "platform"])
def test_ungraded_run_fails_with_the_class_of_the_failures(blame: Blame) -> None:
    data = DataWithDisk(replace(PLAN, max_batch=80)).past_the_evaluation()
    broken: list[RunBroken] = []
    for _ in range(10):
        failed = answers(granted(data.sync(wants=80)), failure="it shows the input")
        blamed = [replace(each, failure=Failure(kind="error", reason="the input", blame=blame)) for each in failed]
        broken += of(data.sync(wants=0, finished=tuple(blamed)), RunBroken)
    assert broken and broken[0].failure_class == blame and broken[0].message.endswith("the input")
    assert broken[0].cause == (PlatformCause.NO_SANDBOX if blame == "infrastructure" else None)


def finished_training(plan: Plan = PLAN) -> DataWithDisk:
    data = DataWithDisk(plan).past_the_evaluation()
    for step in range(1, plan.steps + 1):
        data.train(step)
    return data


def test_the_last_evaluation_ends_the_run_and_the_ledger_adds_up() -> None:
    data = finished_training()
    data.handle(TrainingEnded(weights=WeightsId(0, 3), checkpointed=3))
    tasks = granted(data.sync(version=3, wants=8))
    assert {task.exact for task in tasks} == {WeightsId(0, 3)}
    effects = data.sync(version=3, wants=8, finished=answers(tasks, version=3))
    assert of(effects, PartFinished) == [PartFinished(part="data")]
    assert of(effects, LedgerReported)[-1].counts == {
        "trained": 12, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0,
    }  # fmt: skip


def test_data_is_not_done_before_the_last_weights_are_kept() -> None:
    data = finished_training()
    data.handle(TrainingEnded(weights=WeightsId(0, 3)))
    tasks = granted(data.sync(version=3, wants=8))
    assert of(data.sync(version=3, wants=8, finished=answers(tasks, version=3)), PartFinished) == []
    assert of(data.handle(TrainingEnded(weights=WeightsId(0, 3), checkpointed=3)), PartFinished)


def test_resumed_job_repeats_no_trained_prompt() -> None:
    progress = DataProgress(ended=((0, 2), (3, 5)), ledger=(("trained", 8),))
    data = DataWithDisk(start_step=2, progress=progress)
    tasks = granted(data.sync(version=2, wants=8))
    assert [task.key.ordinal for task in tasks] == [2, 5]
    assert data.counts == {"trained": 8, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 4}


def test_a_tick_alone_leads_to_nothing() -> None:
    assert DataWithDisk().handle(Tick()) == []


def test_pausing_data_starts_only_the_last_evaluation() -> None:
    """After the last step there is nothing to pause: the run ends."""
    data = DataWithDisk(replace(PLAN, steps=2), start_step=1)
    data.handle(PauseRequested())
    assert granted(data.sync(version=1)) == []
    ending = DataWithDisk(replace(PLAN, steps=2), start_step=2)
    ending.handle(PauseRequested())
    ending.handle(TrainingEnded(weights=WeightsId(0, 2), checkpointed=2))
    assert {task.key.evaluation for task in granted(ending.sync(version=2))} == {2}
