"""The trainer: each step once, the new version handed over, the next batch asked for at once."""

from dataclasses import replace
from typing import Any

from engine.pipeline.effects import (
    Effect,
    ForgetWeights,
    PublishWeights,
    RepublishWeights,
    SaveCheckpoint,
    Send,
    TrainOn,
)
from engine.pipeline.messages import (
    BatchReady,
    BatchTrained,
    BatchWanted,
    CheckpointFailed,
    CheckpointWritten,
    Tick,
    TrainerLoaded,
    TrainingEnded,
    VersionRefused,
    VersionStored,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import BufferView, CompleteGroup, DataProgress, GroupKey, SampleKey, Trajectory
from engine.pipeline.reports import CheckpointReported, FaultReported, PartFinished, RunBroken, StepReported
from engine.pipeline.trainer import TrainerBrain
from engine.policy.schedule import PRESETS

PLAN = Plan(
    schedule=PRESETS["laminar"],
    steps=3,
    groups_per_step=1,
    group_size=2,
    checkpoint_every=2,
    evaluation_prompts=2,
    evaluate_every=0,
    max_batch=8,
)
PROGRESS = DataProgress(ended=((0, 1),))


def batch(step: int) -> BatchReady:
    key = GroupKey(ordinal=step)
    trajectories = tuple(
        Trajectory(key=SampleKey(group=key, sample=sample), version=0, reward=float(sample), num_tokens=10 + sample)
        for sample in (0, 1)
    )
    group = CompleteGroup(key=key, trajectories=trajectories, ready_at=0.0)
    buffer = BufferView(num_ready=3, num_in_progress=2)
    return BatchReady(step=step, groups=(group,), progress=PROGRESS, buffer=buffer)


def trained(step: int) -> BatchTrained:
    return BatchTrained(step=step, metrics={"train/loss": 0.5}, advantages=(-1.0, 1.0))


def of(effects: list[Effect], kind: type) -> list[Any]:
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def loaded(plan: Plan = PLAN, step: int = 0) -> TrainerBrain:
    brain = TrainerBrain(plan)
    brain.handle(TrainerLoaded(step=step, num_parameters=1), 0.0)
    return brain


def test_loading_publishes_the_weights_and_asks_for_the_first_batch() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=0, num_parameters=1), 0.0)
    assert of(effects, PublishWeights) == [PublishWeights(version=0, pinned=True)]
    assert of(effects, BatchWanted) == [BatchWanted(step=1)]


def test_a_step_hands_over_its_version_and_asks_for_the_next_before_anything_else() -> None:
    brain = loaded()
    assert of(brain.handle(batch(1), 1.0), TrainOn)
    effects = brain.handle(trained(1), 3.0)
    kinds = [type(effect.message if isinstance(effect, Send) else effect) for effect in effects]
    assert kinds[:2] == [PublishWeights, BatchWanted]
    (report,) = of(effects, StepReported)
    assert report.step == 1 and report.metrics["train/loss"] == 0.5
    assert report.metrics["throughput/tokens_per_s"] == 21 / 3.0
    assert report.metrics["trainer/wait_fraction"] == 1 / 3


def test_a_batch_that_comes_twice_is_trained_once() -> None:
    brain = loaded()
    brain.handle(batch(1), 1.0)
    assert brain.handle(batch(1), 1.1) == []
    brain.handle(trained(1), 2.0)
    assert brain.handle(batch(1), 2.1) == []
    assert brain.handle(trained(1), 2.2) == []


def test_an_unanswered_wish_is_repeated() -> None:
    brain = loaded()
    assert of(brain.handle(Tick(), 1.0), BatchWanted) == []
    assert of(brain.handle(Tick(), 3.0), BatchWanted) == [BatchWanted(step=1)]


def test_a_version_is_offered_until_it_is_stored_and_forgotten_then() -> None:
    brain = loaded()
    assert of(brain.handle(VersionRefused(version=0, reason="hash"), 1.0), RepublishWeights)
    assert of(brain.handle(Tick(), 12.0), RepublishWeights)
    assert of(brain.handle(VersionStored(version=0), 12.1), ForgetWeights)
    assert of(brain.handle(Tick(), 30.0), RepublishWeights) == []


def test_an_overtaken_version_is_forgotten_unless_an_evaluation_wants_it() -> None:
    brain = loaded()
    brain.handle(batch(1), 1.0)
    assert of(brain.handle(trained(1), 2.0), ForgetWeights) == []
    brain.handle(batch(2), 3.0)
    assert of(brain.handle(trained(2), 4.0), ForgetWeights) == [ForgetWeights(version=1)]


def test_a_checkpoint_holds_the_progress_of_its_own_step() -> None:
    brain = loaded()
    for step in (1, 2):
        brain.handle(batch(step), 1.0)
        effects = brain.handle(trained(step), 2.0)
    assert of(effects, SaveCheckpoint) == [SaveCheckpoint(step=2, progress=PROGRESS)]
    written = CheckpointWritten(step=2, uri="file:///c", manifest_sha256="0" * 64, num_bytes=5)
    assert of(brain.handle(written, 3.0), CheckpointReported)


def test_the_last_step_ends_training_and_its_checkpoint_the_trainer() -> None:
    brain = loaded(replace(PLAN, steps=1))
    brain.handle(batch(1), 1.0)
    effects = brain.handle(trained(1), 2.0)
    assert of(effects, TrainingEnded) and of(effects, SaveCheckpoint) and not of(effects, BatchWanted)
    written = CheckpointWritten(step=1, uri="file:///c", manifest_sha256="0" * 64, num_bytes=5)
    assert of(brain.handle(written, 3.0), PartFinished)
    assert of(brain.handle(Tick(), 9.0), TrainingEnded), "said again, in case it was lost"


def test_a_failed_checkpoint_is_a_fault_but_the_last_one_breaks_the_run() -> None:
    brain = loaded()
    assert of(brain.handle(CheckpointFailed(step=2, reason="disk full"), 1.0), FaultReported)
    assert of(brain.handle(CheckpointFailed(step=3, reason="disk full"), 1.0), RunBroken)


def test_resuming_at_the_end_only_evaluates() -> None:
    effects = TrainerBrain(PLAN).handle(TrainerLoaded(step=3, num_parameters=1), 0.0)
    assert of(effects, TrainingEnded) and of(effects, PartFinished) and of(effects, PublishWeights)


def test_what_is_sampled_to_be_read_has_the_best_and_the_worst() -> None:
    brain = loaded()
    brain.handle(batch(1), 1.0)
    (report,) = of(brain.handle(trained(1), 2.0), StepReported)
    assert {read.trajectory.reward for read in report.to_read} == {0.0, 1.0}
    assert {read.advantage for read in report.to_read} == {-1.0, 1.0}
