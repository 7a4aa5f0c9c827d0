"""The choice of a step's trajectories for people to read.

    whole groups    the one with the widest spread of rewards, and a random one, as their allowance permits
    single ones     one of each outcome; the best, worst, longest, stalest, and the one with the largest advantage;
                    then the first of other groups

Invariants:
- a step sends one trajectory of each of its outcomes, unless the debt of earlier steps is too large;
- no trajectory is sent twice, and the trajectories of a group are adjacent;
- the random choice depends on the step's number: a repeated step makes the same choice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.pipeline.messages.to_driver import NO_LOGPROBS, ReadTrajectory
from engine.pipeline.messages.to_trainer import BatchReady, BatchTrained
from engine.pipeline.reading import Allowance
from engine.pipeline.records import Trajectory
from engine.pipeline.trainer.metrics import staleness_of

MAX_SINGLE: Final = 8
# A job's facts may take 200 kB a second. These take less than half; replicas' activity, lines, metrics and data's ended
# samples share the rest. A burst is what the first step, or one after a long pause, may take at once.
GROUPS_BYTES_PER_S: Final = 45_000.0
SINGLE_BYTES_PER_S: Final = 35_000.0
BURST: Final = 1_000_000.0
_MULTIPLIER: Final = 2_654_435_761  # Knuth's multiplier: neighbouring steps are mapped far apart


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """A step whose trajectories were trained on."""

    batch: BatchReady
    trained: BatchTrained
    trajectories: Sequence[Trajectory]
    """Trajectories of all groups, concatenated."""
    groups: Sequence[range]
    """Each group's positions in `trajectories`."""

    @classmethod
    def of(cls, batch: BatchReady, trained: BatchTrained) -> "TrainedStep":
        trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
        groups, end = [], 0
        for group in batch.groups:
            groups.append(range(end, end := end + len(group.trajectories)))
        return cls(batch=batch, trained=trained, trajectories=trajectories, groups=groups)

    def read(self, at: int) -> ReadTrajectory:
        trajectory = self.trajectories[at]
        return ReadTrajectory(
            trajectory=trajectory,
            staleness=staleness_of(self.batch, trajectory),
            advantage=self.trained.advantages[at],
            group_size=next(len(group) for group in self.groups if at in group),
            logprobs=self.trained.logprobs[at] if self.trained.logprobs else NO_LOGPROBS,
        )


class Choice:
    def __init__(self) -> None:
        self._for_groups = Allowance(bytes_per_s=GROUPS_BYTES_PER_S, burst=BURST)
        self._for_single = Allowance(bytes_per_s=SINGLE_BYTES_PER_S, burst=BURST)

    def to_read(self, batch: BatchReady, trained: BatchTrained, *, step_s: float) -> tuple[ReadTrajectory, ...]:
        step = TrainedStep.of(batch, trained)
        self._for_groups.earn(step_s)
        self._for_single.earn(step_s)
        chosen: dict[int, ReadTrajectory] = {}
        for group in _choose_groups(step):
            if not self._for_groups.has_room_for(len(group)):
                continue
            reads = self._for_groups.group([step.read(at) for at in group])
            chosen |= zip(group, reads, strict=False)  # the whole group or nothing
        musts = [at for at in _pick_outcomes(step.trajectories) if at not in chosen]
        num_single = 0
        for at in dict.fromkeys([*musts, *_pick_extremes(step), *(group[0] for group in step.groups)]):
            if at in chosen or (num_single >= MAX_SINGLE and at not in musts):
                continue
            read = self._for_single.one(step.read(at), must=at in musts)
            if read is not None:
                chosen[at] = read
                num_single += 1
        return tuple(chosen[at] for at in sorted(chosen))


def _choose_groups(step: TrainedStep) -> Iterator[range]:
    """The two groups alternate in coming first, so that a small allowance serves both kinds."""
    spread = max(step.groups, key=lambda group: _measure_spread(step.trajectories[at] for at in group))
    others = [group for group in step.groups if group != spread] or [spread]
    by_chance = others[(step.batch.step * _MULTIPLIER % (1 << 32)) * len(others) >> 32]
    in_turn = [spread, by_chance] if step.batch.step % 2 else [by_chance, spread]
    return iter(dict.fromkeys(in_turn))


def _measure_spread(trajectories: Iterator[Trajectory]) -> float:
    rewards = [trajectory.reward for trajectory in trajectories]
    return max(rewards) - min(rewards)


def _pick_outcomes(trajectories: Sequence[Trajectory]) -> list[int]:
    def first(is_such: Callable[[Trajectory], bool]) -> list[int]:
        return [at for at, trajectory in enumerate(trajectories) if is_such(trajectory)][:1]

    untrusted, cut = first(lambda each: not each.trusted), first(lambda each: each.trusted and each.cut)
    return [*untrusted, *cut, *first(lambda each: each.trusted and not each.cut)]


def _pick_extremes(step: TrainedStep) -> list[int]:
    trajectories, advantages = step.trajectories, step.trained.advantages
    positions = range(len(trajectories))
    return [
        max(positions, key=lambda at: (trajectories[at].reward, trajectories[at].num_tokens)),
        min(positions, key=lambda at: (trajectories[at].reward, -trajectories[at].num_tokens)),
        max(positions, key=lambda at: trajectories[at].num_tokens),
        max(positions, key=lambda at: staleness_of(step.batch, trajectories[at])),
        max(positions, key=lambda at: abs(advantages[at])),
    ]
