"""The trainer: each step once, the new version published, the next batch requested at once."""

from dataclasses import replace

from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    Send,
    TrainOn,
)
from engine.pipeline.messages.addresses import relay_address
from engine.pipeline.messages.message import Tick
from engine.pipeline.messages.to_data import BatchWanted, PauseRequested, ResumedFrom, TrainingEnded
from engine.pipeline.messages.to_driver import (
    CheckpointReported,
    FaultReported,
    PartFinished,
    RunBroken,
    StepReported,
    TrainerPaused,
)
from engine.pipeline.messages.to_manager import WeightsUpdated
from engine.pipeline.messages.to_relay import ClaimObserved, RelaysPlaced
from engine.pipeline.messages.to_trainer import (
    BatchReady,
    BatchTrained,
    CheckpointFailed,
    CheckpointWritten,
    MasterElected,
    TrainerLoaded,
    VersionRefused,
    VersionStored,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import BufferView, CompleteGroup, DataProgress, GroupKey, SampleKey, Trajectory
from engine.pipeline.trainer.alarm import BOUND, GAP
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.lineage import Lineage, WeightsId
from engine.policy.schedule import PRESETS
from engine.spec.series import find_series
from tests.engine.pipeline.brain_builders import PLAN as WIDE
from tests.engine.pipeline.brain_builders import of

V0, V1 = WeightsId(0, 0), WeightsId(0, 1)
PLAN = replace(WIDE, groups_per_step=1, checkpoint_every=2)
RELAYS = replace(PLAN, num_relays=3)
PROGRESS = DataProgress(ended=((0, 1),))


def batch(step: int, *, epoch: int = 0) -> BatchReady:
    key = GroupKey(ordinal=step)
    trajectories = tuple(
        Trajectory(
            key=SampleKey(group=key, sample=sample),
            weights=V0,
            reward=float(sample),
            num_tokens=10 + sample,
        )
        for sample in (0, 1)
    )
    group = CompleteGroup(key=key, trajectories=trajectories)
    buffer = BufferView(num_ready=3, num_in_progress=2)
    return BatchReady(step=step, groups=(group,), progress=PROGRESS, buffer=buffer, epoch=epoch)


def trained(step: int) -> BatchTrained:
    return BatchTrained(step=step, metrics={"train/loss": 0.5}, advantages=(-1.0, 1.0))


def written(step: int) -> CheckpointWritten:
    return CheckpointWritten(step=step, uri="file:///c", manifest_sha256="0" * 64, num_bytes=5)


def elected(host: int, claim: int, *held: WeightsId, incarnation: int | None = 0) -> MasterElected:
    return MasterElected(host=host, incarnation=incarnation, claim=claim, held=held)


def loaded(plan: Plan = PLAN, step: int = 0) -> TrainerBrain:
    brain = TrainerBrain(plan)
    brain.handle(TrainerLoaded(step=step, num_parameters=1), 0.0)
    return brain


def step_of(brain: TrainerBrain, step: int, now: float = 2.0) -> list[Effect]:
    assert of(brain.handle(batch(step), now), TrainOn)
    return brain.handle(trained(step), now)


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_loaded_trainer_publishes_and_requests_the_first_batch() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=0, num_parameters=1), 0.0)
    assert of(effects, PublishWeights) == [PublishWeights(weights=V0, pinned=True)]
    assert of(effects, BatchWanted) == [BatchWanted(step=1)]


def test_step_first_publishes_then_requests_the_next_batch() -> None:
    brain = loaded()
    assert of(brain.handle(batch(1), 1.0), TrainOn)
    effects = brain.handle(trained(1), 3.0)
    kinds = [type(effect.message if isinstance(effect, Send) else effect) for effect in effects]
    assert kinds[:4] == [PublishWeights, WeightsUpdated, BatchWanted, StepReported]
    (report,) = of(effects, StepReported)
    assert report.step == 1 and report.metrics["train/loss"] == 0.5
    assert report.metrics["throughput/tokens_per_s"] == 21 / 3.0
    assert report.metrics["trainer/wait_fraction"] == 1 / 3


def test_step_reports_broadcast_time_of_the_last_version() -> None:
    brain = loaded()  # offers version 0 at 0.0
    (first,) = of(step_of(brain, 1, 2.0), StepReported)
    assert "weights/broadcast_s" not in first.metrics, "it is not known yet"
    brain.handle(VersionStored(weights=V1), 2.75)
    brain.handle(VersionStored(weights=V1), 9.0)  # a duplicate
    (second,) = of(step_of(brain, 2, 10.0), StepReported)
    assert second.metrics["weights/broadcast_s"] == 0.75
    assert all(map(find_series, second.metrics))


def test_gap_beyond_rounding_is_reported_once_until_within() -> None:
    """A step with tokens of older versions only has no gap and reports nothing."""
    brain, bound, reports = loaded(replace(PLAN, steps=9)), 0.4, []
    for step, gap in enumerate([0.3, 0.5, None, 0.6, 0.4, 0.41], start=1):
        assert of(brain.handle(batch(step), step), TrainOn)
        metrics = {} if gap is None else {GAP: gap}
        reports.append(of(brain.handle(replace(trained(step), metrics={BOUND: bound} | metrics), step), FaultReported))
    assert [len(faults) for faults in reports] == [0, 1, 0, 0, 0, 1]
    assert "0.5 nats or more" in reports[1][0].message and "explains up to 0.4" in reports[1][0].message


def test_batch_that_was_not_requested_is_ignored() -> None:
    brain = loaded()
    assert brain.handle(batch(2), 0.5) == []
    brain.handle(batch(1), 1.0)
    assert brain.handle(batch(1), 1.1) == []
    brain.handle(trained(1), 2.0)
    assert brain.handle(batch(1), 2.1) == []
    assert brain.handle(trained(1), 2.2) == []


def test_a_batch_for_another_incarnation_is_ignored() -> None:
    assert loaded().handle(batch(1, epoch=1), 1.0) == []


def test_training_gets_the_lineage_for_staleness() -> None:
    lineage = Lineage(((2, 1),))
    (train,) = of(loaded().handle(replace(batch(1), lineage=lineage), 1.0), TrainOn)
    assert train.lineage == lineage


def test_an_unanswered_wish_is_repeated() -> None:
    brain = loaded()
    assert of(brain.handle(Tick(), 1.0), BatchWanted) == []
    assert of(brain.handle(Tick(), 3.0), BatchWanted) == [BatchWanted(step=1)]


def test_last_step_ends_training_and_last_checkpoint_the_trainer() -> None:
    brain = loaded(replace(PLAN, steps=1))
    effects = step_of(brain, 1)
    assert of(effects, TrainingEnded) and of(effects, SaveCheckpoint) and not of(effects, BatchWanted)
    done = brain.handle(written(1), 3.0)
    assert of(done, PartFinished) and of(done, TrainingEnded) == [TrainingEnded(weights=V1, checkpointed=1)]
    assert of(brain.handle(Tick(), 9.0), TrainingEnded), "repeated, in case it was lost"


def test_sampled_trajectories_include_best_and_worst() -> None:
    (report,) = of(step_of(loaded(), 1), StepReported)
    assert {read.trajectory.reward for read in report.to_read} == {0.0, 1.0}
    assert {read.advantage for read in report.to_read} == {-1.0, 1.0}


def test_groups_at_the_batchs_best_are_not_called_solved() -> None:
    """The best answer of a batch may be far from right, and the engine does not know a task's best reward."""
    (report,) = of(step_of(loaded(), 1), StepReported)
    assert report.metrics["reward/groups_at_best"] == 0.0 and "reward/groups_solved" not in report.metrics
    brain, ready = loaded(), batch(1)
    [group] = ready.groups
    alike = tuple(replace(each, reward=0.25) for each in group.trajectories)
    brain.handle(replace(ready, groups=(replace(group, trajectories=alike),)), 1.0)
    (report,) = of(brain.handle(trained(1), 2.0), StepReported)
    assert report.metrics["reward/groups_at_best"] == 1.0


# ── checkpoints and incarnations ──────────────────────────────────────────────────────────────────────────────────────


def test_untrusted_reward_is_counted_and_shown_but_not_averaged() -> None:
    brain = loaded()
    ready = batch(1)
    [group] = ready.groups
    doubtful = [
        replace(each, key=replace(each.key, sample=2 + place), reward=9.0, trusted=False)
        for place, each in enumerate(group.trajectories)
    ]
    given = replace(ready, groups=(replace(group, trajectories=(*group.trajectories, *doubtful)),))
    brain.handle(given, 1.0)
    effects = brain.handle(replace(trained(1), advantages=(1.0, -1.0, 0.0, 0.0)), 2.0)
    (report,) = of(effects, StepReported)
    assert report.metrics["reward/untrusted"] == 0.5
    assert [report.metrics[f"reward/{name}"] for name in ("mean", "std", "min", "max")] == [0.5, 0.5, 0.0, 1.0]
    assert {read.trajectory.trusted for read in report.to_read} == {True, False}


def test_reward_series_cover_truncated_answers() -> None:
    """Also if the loss masks them (`algorithm.mask_truncated`): the trainer's own series have no part in rewards."""
    brain, ready = loaded(), batch(1)
    [group] = ready.groups
    wrong, right = group.trajectories
    brain.handle(replace(ready, groups=(replace(group, trajectories=(replace(wrong, cut=True), right)),)), 1.0)
    (report,) = of(brain.handle(trained(1), 2.0), StepReported)
    assert (report.metrics["reward/mean"], report.metrics["length/cut_fraction"]) == (0.5, 0.5)


def test_checkpoint_is_written_so_long_after_the_last() -> None:
    brain = loaded(replace(PLAN, steps=9, checkpoint_every=100, checkpoint_every_s=900.0))
    steps = [(1, 800.0), (2, 950.0), (3, 1_800.0), (4, 1_850.0)]
    saved = [bool(of(step_of(brain, step, now), SaveCheckpoint)) for step, now in steps]
    assert saved == [False, True, False, True]


def test_a_checkpoint_holds_the_progress_of_its_own_step() -> None:
    brain = loaded()
    step_of(brain, 1)
    effects = step_of(brain, 2)
    assert of(effects, SaveCheckpoint) == [SaveCheckpoint(step=2, progress=PROGRESS)]
    assert of(brain.handle(written(2), 3.0), CheckpointReported)
    assert of(brain.handle(Tick(), 9.0), BatchWanted) == [BatchWanted(step=3, checkpointed=2)]


def test_only_a_failed_last_checkpoint_fails_the_run() -> None:
    brain = loaded()
    assert of(brain.handle(CheckpointFailed(step=2, reason="disk full"), 1.0), FaultReported)
    assert of(brain.handle(CheckpointFailed(step=3, reason="disk full"), 1.0), RunBroken)


def test_messages_name_incarnation_and_initial_checkpoint() -> None:
    brain = TrainerBrain(PLAN, epoch=1)
    resumed = ResumedFrom(step=2, progress=PROGRESS)
    effects = brain.handle(TrainerLoaded(step=2, num_parameters=1, progress=PROGRESS), 0.0)
    assert of(effects, BatchWanted) == [BatchWanted(step=3, epoch=1, checkpointed=2, resumed=resumed)]
    assert of(effects, PublishWeights)[0].weights.epoch == 1
    assert of(effects, WeightsUpdated) == [WeightsUpdated(weights=WeightsId(1, 2))]
    again = brain.handle(Tick(), 3.0)
    assert of(again, BatchWanted)[0].resumed == resumed
    brain.handle(batch(3, epoch=1), 4.0)
    assert of(brain.handle(trained(3), 5.0), TrainingEnded)[0].resumed == resumed


def test_resuming_at_the_end_only_evaluates() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=3, num_parameters=1), 0.0)
    assert of(effects, TrainingEnded) and of(effects, PartFinished) and of(effects, PublishWeights)


# ── offers ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_version_is_offered_until_it_is_stored() -> None:
    brain = loaded()
    assert of(brain.handle(VersionRefused(weights=V0, reason="hash"), 1.0), RepublishWeights)
    assert of(brain.handle(Tick(), 12.0), RepublishWeights)
    brain.handle(VersionStored(weights=V0), 12.1)
    assert of(brain.handle(Tick(), 30.0), RepublishWeights) == []


def test_the_newest_versions_copy_is_kept_stored_or_not() -> None:
    brain = loaded()
    step_of(brain, 1)
    assert of(brain.handle(VersionStored(weights=V1), 3.0), ForgetWeights) == []
    assert ForgetWeights(weights=V1) in of(step_of(brain, 2, now=4.0), ForgetWeights), "there is a newer one"


def test_older_copy_for_an_evaluation_is_kept_until_stored() -> None:
    brain = loaded()
    assert of(step_of(brain, 1), ForgetWeights) == []
    assert of(step_of(brain, 2), ForgetWeights) == [ForgetWeights(weights=V1)], "overtaken, and no evaluation needs it"
    assert of(brain.handle(VersionStored(weights=V0), 5.0), ForgetWeights) == [ForgetWeights(weights=V0)]


def test_relay_reports_on_a_dead_trainers_versions_are_ignored() -> None:
    brain = loaded()
    assert brain.handle(VersionRefused(weights=WeightsId(7, 0), reason="hash"), 1.0) == []
    brain.handle(VersionStored(weights=WeightsId(7, 0)), 1.0)
    assert of(brain.handle(Tick(), 12.0), RepublishWeights), "it is not stored"


def test_offers_follow_the_relay_that_leads() -> None:
    brain = loaded(RELAYS)
    effects = brain.handle(elected(2, 5), 1.0)
    assert of(effects, RepublishWeights) == [RepublishWeights(weights=V0, pinned=True, to=relay_address(2))]
    assert of(step_of(brain, 1), PublishWeights)[0].to == relay_address(2)


def test_new_leader_is_offered_all_versions_that_it_lacks() -> None:
    brain = loaded(RELAYS)
    step_of(brain, 1)
    brain.handle(VersionStored(weights=V0), 3.0)
    brain.handle(VersionStored(weights=V1), 3.0)
    assert of(brain.handle(elected(1, 5, V1), 4.0), RepublishWeights) == []
    assert [offer.weights for offer in of(brain.handle(elected(2, 6), 5.0), RepublishWeights)] == [V1]


def test_highest_claim_counts_and_answers_every_claim() -> None:
    brain = loaded(RELAYS)
    (send,) = [effect for effect in brain.handle(elected(2, 5, incarnation=3), 1.0) if isinstance(effect, Send)]
    assert (send.to, send.message) == (relay_address(2), ClaimObserved(claim=5, incarnation=3))
    effects = brain.handle(elected(1, 4), 2.0)
    assert effects == [Send(to=relay_address(1), message=ClaimObserved(claim=5, incarnation=3))]
    assert of(step_of(brain, 1), PublishWeights)[0].to == relay_address(2)


def test_unanswered_offer_goes_to_next_relay_which_names_leader() -> None:
    brain = loaded(RELAYS)
    assert [offer.to for offer in of(brain.handle(Tick(), 12.0), RepublishWeights)] == [relay_address(1)]
    effects = brain.handle(elected(2, 5, incarnation=None), 12.1)
    assert [offer.to for offer in of(effects, RepublishWeights)] == [relay_address(2)]
    assert of(effects, ClaimObserved) == [], "the sender named another relay"
    assert of(brain.handle(elected(2, 5, incarnation=None), 12.2), RepublishWeights) == [], "no news"


def test_a_relay_without_a_host_is_offered_nothing() -> None:
    brain = loaded(RELAYS)
    assert of(brain.handle(RelaysPlaced(relays=(0, 5)), 1.0), RepublishWeights) == [], "it may lead still"
    effects = brain.handle(RelaysPlaced(relays=(2, 5)), 1.0)
    assert [offer.to for offer in of(effects, RepublishWeights)] == [relay_address(2)]
    assert [offer.to for offer in of(brain.handle(Tick(), 12.0), RepublishWeights)] == [relay_address(5)]
    assert [offer.to for offer in of(brain.handle(Tick(), 24.0), RepublishWeights)] == [relay_address(2)]


def test_steps_within_a_window_are_not_for_the_rollouts() -> None:
    brain = loaded(replace(PLAN, schedule=PRESETS["stream"]))
    assert of(step_of(brain, 1), PublishWeights) == []
    assert of(step_of(brain, 2), PublishWeights)


# ── pausing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pause_of_a_waiting_trainer_saves_the_last_step() -> None:
    brain = loaded()
    step_of(brain, 1)
    (save,) = of(brain.handle(PauseRequested(), 3.0), SaveCheckpoint)
    assert save == SaveCheckpoint(step=1, progress=PROGRESS)
    assert brain.handle(PauseRequested(), 4.0) == [], "a repeated request changes nothing"
    assert brain.handle(batch(2), 4.5) == [], "a batch still on its way is not trained"
    effects = brain.handle(written(1), 5.0)
    assert of(effects, CheckpointReported) and of(effects, TrainerPaused) == [TrainerPaused(step=1, checkpointed=1)]
    assert of(brain.handle(Tick(), 30.0), BatchWanted) == []


def test_a_pause_in_the_middle_of_a_step_lets_it_end() -> None:
    brain = loaded()
    brain.handle(batch(1), 2.0)
    assert brain.handle(PauseRequested(), 2.5) == []
    effects = brain.handle(trained(1), 3.0)
    assert of(effects, StepReported) and of(effects, SaveCheckpoint) and not of(effects, BatchWanted)


def test_a_step_whose_checkpoint_is_due_anyway_is_written_once() -> None:
    brain = loaded()
    step_of(brain, 1)
    brain.handle(batch(2), 3.0)
    brain.handle(PauseRequested(), 3.5)
    assert len(of(brain.handle(trained(2), 4.0), SaveCheckpoint)) == 1
    assert of(brain.handle(written(2), 5.0), TrainerPaused) == [TrainerPaused(step=2, checkpointed=2)]


def test_pause_without_unsaved_steps_writes_nothing() -> None:
    assert of(loaded().handle(PauseRequested(), 1.0), TrainerPaused) == [TrainerPaused(step=0, checkpointed=0)]
    brain = TrainerBrain(PLAN)
    assert brain.handle(PauseRequested(), 0.0) == [], "it is still loading"
    resumed = TrainerLoaded(step=2, num_parameters=1, progress=PROGRESS)
    effects = brain.handle(resumed, 1.0)
    assert of(effects, TrainerPaused) == [TrainerPaused(step=2, checkpointed=2)] and not of(effects, BatchWanted)


def test_pause_with_failed_checkpoint_reports_the_one_left() -> None:
    brain = loaded()
    step_of(brain, 1)
    brain.handle(PauseRequested(), 3.0)
    effects = brain.handle(CheckpointFailed(step=1, reason="the disk is full"), 4.0)
    assert of(effects, FaultReported) and of(effects, TrainerPaused) == [TrainerPaused(step=1, checkpointed=0)]


def test_last_step_ends_the_run_despite_a_pause_request() -> None:
    plan = replace(PLAN, steps=1)
    brain = loaded(plan)
    brain.handle(batch(1), 2.0)
    brain.handle(PauseRequested(), 2.5)
    brain.handle(trained(1), 3.0)
    effects = brain.handle(written(1), 4.0)
    assert of(effects, PartFinished) and not of(effects, TrainerPaused)


def test_trainer_killed_before_a_checkpoint_begins_again() -> None:
    trainer = TrainerBrain(PLAN, epoch=1)
    [wanted] = of(trainer.handle(TrainerLoaded(step=0, num_parameters=1, progress=None), 0.0), BatchWanted)
    assert wanted.resumed == ResumedFrom(step=0, progress=DataProgress())
