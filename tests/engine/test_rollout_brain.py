"""A replica: weights only while nothing runs, nothing lost until it is confirmed."""

from dataclasses import replace
from typing import Any

from engine.pipeline.effects import Effect, InstallWeights, Send, StartSequences
from engine.pipeline.messages import (
    InstallRefused,
    LoadMeasured,
    ReplicaReported,
    ReplicaSynced,
    Tick,
    TrajectoriesEnded,
    VersionAnnounced,
    VersionMissing,
    WeightsInstalled,
    WeightsServed,
    WeightsWanted,
    WorkGranted,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import GroupKey, GroupTask, SampleKey, Trajectory
from engine.pipeline.reports import FaultReported, ReplicaReady
from engine.pipeline.rollout import RolloutBrain
from engine.policy.schedule import PRESETS
from engine.weights.port import WeightManifest

PLAN = Plan(
    schedule=PRESETS["laminar"],
    steps=3,
    groups_per_step=2,
    group_size=2,
    checkpoint_every=10,
    evaluation_prompts=2,
    evaluate_every=0,
    max_batch=8,
)
KEY = GroupKey(ordinal=0)
TASK = GroupTask(key=KEY, samples=(0, 1))


def served(version: int) -> WeightsServed:
    manifest = WeightManifest(version=version, num_bytes=0, chunk_bytes=1, sha256="", chunk_sha256=(), tensors=())
    return WeightsServed(manifest=manifest, payload=None)


def grant(*tasks: GroupTask, taken: tuple[SampleKey, ...] = (), evaluate_at: int | None = None) -> WorkGranted:
    return WorkGranted(incarnation=0, taken=taken, tasks=tasks, evaluate_at=evaluate_at)


def ended(sample: int, version: int = 0) -> TrajectoriesEnded:
    key = SampleKey(group=KEY, sample=sample)
    return TrajectoriesEnded(trajectories=(Trajectory(key=key, version=version, reward=0.0, num_tokens=3),))


def of(effects: list[Effect], kind: type) -> list[Any]:
    messages = [effect.message if isinstance(effect, Send) else effect for effect in effects]
    return [message for message in messages if isinstance(message, kind)]


def ready(plan: Plan = PLAN) -> RolloutBrain:
    brain = RolloutBrain(plan, replica=0, incarnation=0)
    brain.handle(Tick(), 0.0)
    brain.handle(served(0), 0.0)
    brain.handle(WeightsInstalled(version=0), 0.0)
    return brain


def test_it_first_pulls_weights_then_says_that_it_is_ready_and_asks_for_work() -> None:
    brain = RolloutBrain(PLAN, replica=0, incarnation=0)
    assert of(brain.handle(Tick(), 0.0), WeightsWanted)[0].held == -1
    assert of(brain.handle(served(0), 0.1), InstallWeights)
    effects = brain.handle(WeightsInstalled(version=0), 0.2)
    assert of(effects, ReplicaReady)
    assert of(effects, ReplicaSynced)[0].wants == 8


def test_weights_never_change_under_running_sequences() -> None:
    brain = ready()
    assert of(brain.handle(grant(TASK), 1.0), StartSequences)
    assert of(brain.handle(VersionAnnounced(version=1), 1.1), WeightsWanted) == []
    assert of(brain.handle(served(1), 1.2), InstallWeights) == []
    brain.handle(ended(0), 1.3)
    effects = brain.handle(ended(1), 1.4)
    assert of(effects, WeightsWanted)[0].held == 0
    assert of(brain.handle(served(1), 1.5), InstallWeights)


def test_with_a_schedule_that_continues_weights_change_at_once() -> None:
    brain = ready(replace(PLAN, schedule=replace(PLAN.schedule, in_flight="continue")))
    brain.handle(grant(TASK), 1.0)
    assert of(brain.handle(VersionAnnounced(version=1), 1.1), WeightsWanted)
    assert of(brain.handle(served(1), 1.2), InstallWeights)


def test_with_newer_weights_in_sight_it_asks_for_no_more_work() -> None:
    brain = ready()
    brain.handle(grant(TASK), 1.0)
    brain.handle(VersionAnnounced(version=1), 1.1)
    (sync,) = of(brain.handle(ended(0), 1.2), ReplicaSynced)
    assert sync.wants == 0


def test_a_finished_trajectory_is_handed_over_until_it_is_confirmed() -> None:
    brain = ready()
    brain.handle(grant(TASK), 1.0)
    (sync,) = of(brain.handle(ended(0), 1.2), ReplicaSynced)
    assert len(sync.finished) == 1 and sync.holds == (KEY,)
    assert of(brain.handle(Tick(), 1.3), ReplicaSynced) == []
    (again,) = of(brain.handle(Tick(), 4.0), ReplicaSynced)
    assert again.finished == sync.finished
    brain.handle(grant(taken=(sync.finished[0].key,)), 4.1)
    (last,) = of(brain.handle(Tick(), 7.0), ReplicaSynced)
    assert last.finished == ()


def test_news_are_gathered_while_others_run() -> None:
    brain = ready()
    brain.handle(grant(TASK, GroupTask(key=GroupKey(ordinal=1), samples=(0,))), 1.0)
    assert of(brain.handle(ended(0), 1.10), ReplicaSynced)
    assert of(brain.handle(ended(1), 1.11), ReplicaSynced) == []
    assert len(of(brain.handle(Tick(), 1.16), ReplicaSynced)[0].finished) == 1


def test_a_grant_that_comes_twice_starts_once() -> None:
    brain = ready()
    brain.handle(grant(TASK), 1.0)
    assert of(brain.handle(grant(TASK), 1.1), StartSequences) == []
    brain.handle(ended(0), 1.2)
    assert of(brain.handle(grant(TASK), 1.3), StartSequences) == []


def test_a_grant_for_an_earlier_incarnation_starts_nothing() -> None:
    brain = ready()
    stray = replace(grant(TASK), incarnation=7)
    assert of(brain.handle(stray, 1.0), StartSequences) == []


def test_work_for_exact_weights_that_it_does_not_hold_is_not_started() -> None:
    task = GroupTask(key=GroupKey(ordinal=0, evaluation=5), samples=(0,), exact_version=5)
    assert of(ready().handle(grant(task), 1.0), StartSequences) == []


def test_an_evaluation_holds_it_at_its_version_until_released() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(version=3), 1.0)
    (wanted,) = of(brain.handle(grant(evaluate_at=2), 1.1), WeightsWanted)
    assert wanted.exact == 2
    assert of(brain.handle(served(3), 1.2), InstallWeights) == []
    assert of(brain.handle(served(2), 1.3), InstallWeights)
    (sync,) = of(brain.handle(WeightsInstalled(version=2), 1.4), ReplicaSynced)
    assert (sync.version, sync.wants) == (2, 8)
    (wanted,) = of(brain.handle(grant(evaluate_at=None), 1.5), WeightsWanted)
    assert wanted.exact is None


def test_a_version_that_no_relay_has_is_reported() -> None:
    brain = ready()
    brain.handle(grant(evaluate_at=2), 1.0)
    (sync,) = of(brain.handle(VersionMissing(version=2), 1.1), ReplicaSynced)
    assert sync.missing_version == 2


def test_refused_bytes_are_a_fault_and_are_asked_for_again() -> None:
    brain = ready()
    brain.handle(VersionAnnounced(version=1), 1.0)
    brain.handle(served(1), 1.1)
    assert of(brain.handle(InstallRefused(version=1, reason="hash"), 1.2), FaultReported)
    assert of(brain.handle(Tick(), 4.0), WeightsWanted)


def test_a_lost_announcement_is_made_up_for() -> None:
    assert of(ready().handle(Tick(), 6.0), WeightsWanted)[0].held == 0


def test_its_load_goes_to_the_manager() -> None:
    brain = ready()
    brain.handle(grant(TASK), 1.0)
    (report,) = of(brain.handle(LoadMeasured(kv_used=0.5, num_tokens=9), 1.1), ReplicaReported)
    assert (report.num_running, report.kv_used, report.version) == (2, 0.5, 0)
