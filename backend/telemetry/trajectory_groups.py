"""Samples of a step by their question, and by what became of them.

Invariants:
- of a step that several attempts did, the latest counts;
- counts are of the samples that were told: a whole group where there are `group_size` of them, some of it else;
- rewards are of the samples that have one; an error or a time-out is no reward of 0.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from django.db.models import Count, QuerySet
from django.db.models.functions import Left

from backend.jobs.models import Job
from backend.telemetry.models import Trajectory

MOST_SAMPLES: Final = 2_000
"""Of a step, read at once: many times what the engine tells of one."""
BEGINNING: Final = 300
"""Characters of a prompt in a list of groups."""
_WITHOUT_REWARD: Final = frozenset({"timeout", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A question of a step with the samples of it that were told."""

    prompt_ordinal: int
    prompt: str
    """Its beginning."""
    num_told: int
    group_size: int
    """0: not told."""
    reward_mean: float | None
    """Of the samples with a reward; None: there is none. So are the lowest and the highest."""
    reward_min: float | None
    reward_max: float | None
    ends: Mapping[str, int] = field(default_factory=dict)
    """How many of the told ones ended how."""

    @property
    def is_whole(self) -> bool:
        return self.num_told == self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTold:
    """Told samples of a step with one end for one reason."""

    end: str
    outcome: str
    reason: str
    num_told: int


def groups_of_step(job: Job, step: int) -> Sequence[Group]:
    """By the order in which their questions were asked."""
    rows = _of_step(job, step).annotate(beginning=Left("prompt", BEGINNING))
    found = rows.order_by("prompt_ordinal", "sample").values_list(
        "prompt_ordinal", "beginning", "group_size", "reward", "outcome", "end"
    )
    return list(_grouped(list(found[:MOST_SAMPLES])))


def samples_of_group(job: Job, step: int, prompt_ordinal: int) -> Sequence[Trajectory]:
    """By their number in the group."""
    rows = _of_step(job, step).filter(prompt_ordinal=prompt_ordinal).select_related("file")
    return list(rows.order_by("sample")[:MOST_SAMPLES])


def ends_of_step(job: Job, step: int) -> Sequence[EndTold]:
    """What became of the samples told at a step; the most frequent first."""
    rows = _of_step(job, step).values("end", "outcome", "reason").annotate(num_told=Count("pk"))
    found = rows.order_by("-num_told", "end", "outcome", "reason")[:MOST_SAMPLES]
    return [EndTold(**row) for row in found]


def _of_step(job: Job, step: int) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.filter(job=job, step=step)
    newest = rows.order_by("-attempt").values_list("attempt", flat=True).first()
    return rows.filter(attempt=newest or 0)


def _grouped(rows: Sequence[tuple[int, str, int, float, str, str]]) -> Iterator[Group]:
    by_question: dict[int, list[tuple[int, str, int, float, str, str]]] = {}
    for row in rows:
        by_question.setdefault(row[0], []).append(row)
    for ordinal, samples in by_question.items():
        rewards = [reward for _, _, _, reward, outcome, _ in samples if outcome not in _WITHOUT_REWARD]
        yield Group(
            prompt_ordinal=ordinal,
            prompt=samples[0][1],
            num_told=len(samples),
            group_size=max(size for _, _, size, *_ in samples),
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_min=min(rewards, default=None),
            reward_max=max(rewards, default=None),
            ends=dict(Counter(end for *_, end in samples)),
        )
