"""What a person may read of a step: whole groups, one trajectory of each outcome, and no more than may be told."""

from dataclasses import replace

from engine.live.facts.from_reports import trajectories_sampled
from engine.pipeline.messages.to_driver import ReadTrajectory
from engine.pipeline.messages.to_trainer import BatchReady, BatchTrained
from engine.pipeline.packed import Floats, Ints
from engine.pipeline.reading import ELLIPSIS
from engine.pipeline.records import (
    BufferView,
    CompleteGroup,
    DataProgress,
    GroupKey,
    SampleKey,
    Trajectory,
    TrajectoryContent,
)
from engine.pipeline.trainer.choice import BURST, GROUPS_BYTES_PER_S, SINGLE_BYTES_PER_S, Choice
from engine.policy.lineage import WeightsId


def content(*, text: str, num_tokens: int) -> TrajectoryContent:
    return TrajectoryContent(
        prompt_ids=Ints.of([1] * num_tokens),
        response_ids=Ints.of([150_000] * num_tokens),
        logprobs=Floats.of([-1.2345678] * num_tokens),
        prompt_text=text,
        response_text=text,
        remark="",
    )


def group_of(ordinal: int, *rewards: float, said: TrajectoryContent | None = None) -> CompleteGroup:
    key = GroupKey(ordinal=ordinal)
    num_tokens = 5 if said is None else len(said.response_ids)
    trajectories = tuple(
        Trajectory(
            key=SampleKey(group=key, sample=sample),
            weights=WeightsId(0, 0),
            reward=reward,
            num_tokens=num_tokens,
            content=said,
        )
        for sample, reward in enumerate(rewards)
    )
    return CompleteGroup(key=key, trajectories=trajectories)


def step_of(*groups: CompleteGroup, step: int = 1) -> tuple[BatchReady, BatchTrained]:
    buffer = BufferView(num_ready=0, num_in_progress=0)
    num = sum(len(group.trajectories) for group in groups)
    batch = BatchReady(step=step, groups=groups, progress=DataProgress(), buffer=buffer)
    return batch, BatchTrained(step=step, metrics={}, advantages=(0.0,) * num)


def ordinals(told: tuple[ReadTrajectory, ...]) -> list[int]:
    return [read.trajectory.key.group.ordinal for read in told]


def num_bytes(told: tuple[ReadTrajectory, ...]) -> int:
    facts = trajectories_sampled(1, told)
    return sum(len(fact.model_dump_json().encode()) for fact in facts)


def test_the_group_whose_rewards_lie_furthest_apart_is_told_whole_and_says_how_large_it_is() -> None:
    groups = [group_of(ordinal, 0.5, 0.5, 0.5, 0.5) for ordinal in range(30)] + [group_of(30, 0.0, 1.0, 0.0, 0.0)]
    told = Choice().to_read(*step_of(*groups), step_s=1.0)
    assert ordinals(told).count(30) == 4
    assert {read.group_size for read in told} == {4}
    assert len({read.trajectory.key for read in told}) == len(told)
    by_chance = [each for each in set(ordinals(told)) - {30} if ordinals(told).count(each) == 4]
    assert len(by_chance) == 1


def test_one_of_each_outcome_is_told_however_fast_the_steps_are() -> None:
    said = content(text="𝄞" * 500, num_tokens=500)
    group = group_of(0, *[0.0] * 60, said=said)
    own = list(group.trajectories)
    own[30], own[50] = replace(own[30], trusted=False), replace(own[50], cut=True)
    choice = Choice()
    for step in range(1, 100):
        batch = step_of(replace(group, trajectories=tuple(own)), step=step)
        told = [read.trajectory for read in choice.to_read(*batch, step_s=0.2)]
        outcomes = {(trajectory.trusted, trajectory.cut) for trajectory in told}
        assert outcomes == {(True, False), (False, False), (True, True)}, step


def test_no_more_is_told_than_its_seconds_allow_whatever_is_written() -> None:
    """Letters of four bytes, marks that JSON writes as two, and groups that no saving is enough for."""
    for text, num_tokens, size in (("𝄞" * 60_000, 50_000, 16), ('"\n' * 9_000, 3_000, 100), ("é", 1, 4)):
        groups = [
            group_of(at, *[0.0, 1.0] * (size // 2), said=content(text=text, num_tokens=num_tokens)) for at in (0, 1)
        ]
        choice, steps = Choice(), 80
        told = [num_bytes(choice.to_read(*step_of(*groups, step=step), step_s=0.5)) for step in range(1, steps + 1)]
        # What may be saved up of either kind, the debt of a group that is told all the same, and what the time allows.
        assert sum(told) < 4 * BURST + steps * 0.5 * (GROUPS_BYTES_PER_S + SINGLE_BYTES_PER_S)
        assert all(told[:4])


def test_what_is_cut_says_so_and_nobody_is_sent_what_nobody_reads() -> None:
    said = content(text="a" * 60_000, num_tokens=50_000)
    (first, *_) = Choice().to_read(*step_of(group_of(0, 0.0, 1.0, said=said)), step_s=1.0)
    told = first.trajectory.content
    assert told is not None and first.trajectory.num_tokens == 50_000
    assert told.response_text.endswith(ELLIPSIS) and len(told.response_text) == 20_000
    assert len(told.response_ids) == len(told.logprobs) == 2_048
    assert not told.prompt_ids and not told.routes


def test_a_group_of_more_than_a_fact_may_hold_goes_over_several() -> None:
    told = Choice().to_read(*step_of(group_of(0, *map(float, range(70)))), step_s=1.0)
    facts = trajectories_sampled(1, told)
    assert [len(fact.trajectories) for fact in facts] == [32, 32, 6]
