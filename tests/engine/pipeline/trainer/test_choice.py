"""A step's trajectories for people: whole groups, one trajectory of each outcome, within a byte budget."""

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


def group_of(ordinal: int, *rewards: float, shown: TrajectoryContent | None = None) -> CompleteGroup:
    key = GroupKey(ordinal=ordinal)
    num_tokens = 5 if shown is None else len(shown.response_ids)
    trajectories = tuple(
        Trajectory(
            key=SampleKey(group=key, sample=sample),
            weights=WeightsId(0, 0),
            reward=reward,
            num_tokens=num_tokens,
            content=shown,
        )
        for sample, reward in enumerate(rewards)
    )
    return CompleteGroup(key=key, trajectories=trajectories)


def step_of(*groups: CompleteGroup, step: int = 1) -> tuple[BatchReady, BatchTrained]:
    buffer = BufferView(num_ready=0, num_in_progress=0)
    num = sum(len(group.trajectories) for group in groups)
    batch = BatchReady(step=step, groups=groups, progress=DataProgress(), buffer=buffer)
    return batch, BatchTrained(step=step, metrics={}, advantages=(0.0,) * num)


def ordinals(chosen: tuple[ReadTrajectory, ...]) -> list[int]:
    return [read.trajectory.key.group.ordinal for read in chosen]


def num_bytes(chosen: tuple[ReadTrajectory, ...]) -> int:
    facts = trajectories_sampled(1, chosen)
    return sum(len(fact.model_dump_json().encode()) for fact in facts)


def test_group_with_widest_reward_spread_is_sent_whole() -> None:
    groups = [group_of(ordinal, 0.5, 0.5, 0.5, 0.5) for ordinal in range(30)] + [group_of(30, 0.0, 1.0, 0.0, 0.0)]
    chosen = Choice().to_read(*step_of(*groups), step_s=1.0)
    assert ordinals(chosen).count(30) == 4
    assert {read.group_size for read in chosen} == {4}
    assert len({read.trajectory.key for read in chosen}) == len(chosen)
    by_chance = [each for each in set(ordinals(chosen)) - {30} if ordinals(chosen).count(each) == 4]
    assert len(by_chance) == 1


def test_one_of_each_outcome_is_sent_at_any_step_rate() -> None:
    shown = content(text="𝄞" * 500, num_tokens=500)
    group = group_of(0, *[0.0] * 60, shown=shown)
    own = list(group.trajectories)
    own[30], own[50] = replace(own[30], trusted=False), replace(own[50], cut=True)
    choice = Choice()
    for step in range(1, 100):
        batch = step_of(replace(group, trajectories=tuple(own)), step=step)
        chosen = [read.trajectory for read in choice.to_read(*batch, step_s=0.2)]
        outcomes = {(trajectory.trusted, trajectory.cut) for trajectory in chosen}
        assert outcomes == {(True, False), (False, False), (True, True)}, step


def test_choice_stays_within_its_byte_budget() -> None:
    """Letters of four bytes, letters that JSON escapes as two, and groups larger than any burst."""
    for text, num_tokens, size in (("𝄞" * 60_000, 50_000, 16), ('"\n' * 9_000, 3_000, 100), ("é", 1, 4)):
        groups = [
            group_of(at, *[0.0, 1.0] * (size // 2), shown=content(text=text, num_tokens=num_tokens)) for at in (0, 1)
        ]
        choice, steps = Choice(), 80
        sizes = [num_bytes(choice.to_read(*step_of(*groups, step=step), step_s=0.5)) for step in range(1, steps + 1)]
        # Both bursts, the debt of a group that is sent anyway, and the bytes that the time earns.
        assert sum(sizes) < 4 * BURST + steps * 0.5 * (GROUPS_BYTES_PER_S + SINGLE_BYTES_PER_S)
        assert all(sizes[:4])


def test_cut_text_is_marked_and_unread_fields_are_dropped() -> None:
    shown = content(text="a" * 60_000, num_tokens=50_000)
    (first, *_) = Choice().to_read(*step_of(group_of(0, 0.0, 1.0, shown=shown)), step_s=1.0)
    excerpt = first.trajectory.content
    assert excerpt is not None and first.trajectory.num_tokens == 50_000
    assert excerpt.response_text.endswith(ELLIPSIS) and len(excerpt.response_text) == 20_000
    assert len(excerpt.response_ids) == len(excerpt.logprobs) == 2_048
    assert not excerpt.prompt_ids and not excerpt.routes


def test_a_group_of_more_than_a_fact_may_hold_goes_over_several() -> None:
    chosen = Choice().to_read(*step_of(group_of(0, *map(float, range(70)))), step_s=1.0)
    facts = trajectories_sampled(1, chosen)
    assert [len(fact.trajectories) for fact in facts] == [32, 32, 6]
