"""A job's trajectories of one step, by question, and the nearest older and newer steps.

Invariants:
- every stored trajectory can be read, under its own step, however old it is;
- of a step that several attempts did, the latest counts;
- a group is called whole only if all samples of its question are stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend.jobs.models import Job
from backend.pages.trajectories.meanings import WITHOUT_REWARD, Meaning, meaning_of_end, meaning_of_outcome
from backend.pages.trajectories.tones import tone_among
from backend.telemetry.removal import Removed, refuse_if_trajectories_are_removed
from backend.telemetry.representations import TrajectoryOut
from backend.telemetry.selectors import steps_to_read, trajectories_of_step


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    it: TrajectoryOut
    tone: str
    """The tone of its reward; empty: no reward."""
    end: Meaning
    outcome: Meaning

    @property
    def has_reward(self) -> bool:
        return bool(self.tone)

    @property
    def was_trained(self) -> bool:
        return self.it.end == "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    prompt_ordinal: int
    prompt: str
    size: int
    """0: unknown."""
    samples: Sequence[ShownSample]
    """Best first, those without a reward last."""

    @property
    def is_whole(self) -> bool:
        return len(self.samples) == self.size

    @property
    def reward_mean(self) -> float | None:
        """Over samples with a reward, if the group is whole."""
        rewards = [each.it.reward for each in self.samples if each.has_reward]
        return sum(rewards) / len(rewards) if rewards and self.is_whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    step: int | None
    """The requested step, or the newest; None: there is none."""
    groups: Sequence[ShownGroup] = ()
    """Whole groups first, then the others, each in the order of their questions."""
    older: int | None = None
    """The nearest older step with trajectories; `newer` likewise."""
    newer: int | None = None
    is_newest: bool = True
    removed: str = ""
    """Why the trajectories were removed."""

    @property
    def num_samples(self) -> int:
        return sum(len(each.samples) for each in self.groups)

    @property
    def num_whole(self) -> int:
        return sum(each.is_whole for each in self.groups)


def newest_step_to_read(job: Job) -> int | None:
    return steps_to_read(job).order_by("-step").first()


def reading_of(job: Job, asked: int | None) -> Reading:
    try:
        refuse_if_trajectories_are_removed(job)
    except Removed as removed:
        return Reading(step=asked, removed=removed.detail)
    newest = newest_step_to_read(job)
    step = newest if asked is None else asked
    if step is None:
        return Reading(step=None)
    steps = steps_to_read(job)
    return Reading(
        step=step,
        groups=groups_of([TrajectoryOut.of(row) for row in trajectories_of_step(job, step)]),
        older=steps.filter(step__lt=step).order_by("-step").first(),
        newer=steps.filter(step__gt=step).order_by("step").first(),
        is_newest=asked is None,
    )


def groups_of(rows: Sequence[TrajectoryOut]) -> Sequence[ShownGroup]:
    return sorted(_grouped(rows), key=lambda group: (not group.is_whole, group.prompt_ordinal))


def shown_samples(rows: Sequence[TrajectoryOut]) -> Sequence[ShownSample]:
    tone_of = tone_among([row.reward for row in rows if row.outcome not in WITHOUT_REWARD])
    return [
        ShownSample(
            it=row,
            tone="" if row.outcome in WITHOUT_REWARD else tone_of(row.reward),
            end=meaning_of_end(row.end),
            outcome=meaning_of_outcome(row.outcome),
        )
        for row in rows
    ]


def _grouped(rows: Sequence[TrajectoryOut]) -> Iterator[ShownGroup]:
    by_question: dict[int, list[ShownSample]] = {}
    for sample in shown_samples(rows):
        by_question.setdefault(sample.it.prompt_ordinal, []).append(sample)
    for ordinal, samples in by_question.items():
        yield ShownGroup(
            prompt_ordinal=ordinal,
            prompt=samples[0].it.prompt,
            size=max(each.it.group_size for each in samples),
            samples=sorted(samples, key=lambda each: (not each.has_reward, -each.it.reward, each.it.sample)),
        )
