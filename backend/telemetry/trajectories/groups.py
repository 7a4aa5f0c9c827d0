"""Samples of a step, grouped by question, and counted by end.

Invariants:
- for a step trained by several attempts, the latest counts;
- counts are of the reported samples: the whole group if there are `group_size` of them, otherwise a part of it;
- rewards are of samples with a reward; an error or timeout is not a reward of 0.
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
"""Samples of a step read at once: many times what the engine reports per step."""
BEGINNING: Final = 300
"""Characters of a prompt in a list of groups."""
_WITHOUT_REWARD: Final = frozenset({"timeout", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A question of a step with its reported samples."""

    prompt_ordinal: int
    prompt: str
    """Its beginning."""
    num_reported: int
    group_size: int
    """0: not reported."""
    reward_mean: float | None
    """Mean of the samples with a reward; None if there are none, as are lowest and highest."""
    reward_min: float | None
    reward_max: float | None
    ends: Mapping[str, int] = field(default_factory=dict)
    """Number of reported samples by end."""

    @property
    def is_whole(self) -> bool:
        return self.num_reported == self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EndCount:
    """Reported samples of a step with the same end and reason."""

    end: str
    outcome: str
    reason: str
    num_reported: int


def groups_of_step(job: Job, step: int) -> Sequence[Group]:
    """In the order in which their questions were posed."""
    rows = _of_step(job, step).annotate(beginning=Left("prompt", BEGINNING))
    samples = rows.order_by("prompt_ordinal", "sample").values_list(
        "prompt_ordinal", "beginning", "group_size", "reward", "outcome", "end"
    )
    return list(_group(list(samples[:MOST_SAMPLES])))


def samples_of_group(job: Job, step: int, prompt_ordinal: int) -> Sequence[Trajectory]:
    """In order of their number in the group."""
    rows = _of_step(job, step).filter(prompt_ordinal=prompt_ordinal).select_related("file")
    return list(rows.order_by("sample")[:MOST_SAMPLES])


def ends_of_step(job: Job, step: int) -> Sequence[EndCount]:
    """Ends of the samples reported for a step, the most frequent first."""
    rows = _of_step(job, step).values("end", "outcome", "reason").annotate(num_reported=Count("pk"))
    counts = rows.order_by("-num_reported", "end", "outcome", "reason")[:MOST_SAMPLES]
    return [EndCount(**row) for row in counts]


def _of_step(job: Job, step: int) -> QuerySet[Trajectory]:
    rows = Trajectory.objects.filter(job=job, step=step)
    newest = rows.order_by("-attempt").values_list("attempt", flat=True).first()
    return rows.filter(attempt=newest or 0)


def _group(rows: Sequence[tuple[int, str, int, float, str, str]]) -> Iterator[Group]:
    by_question: dict[int, list[tuple[int, str, int, float, str, str]]] = {}
    for row in rows:
        by_question.setdefault(row[0], []).append(row)
    for ordinal, samples in by_question.items():
        rewards = [reward for _, _, _, reward, outcome, _ in samples if outcome not in _WITHOUT_REWARD]
        yield Group(
            prompt_ordinal=ordinal,
            prompt=samples[0][1],
            num_reported=len(samples),
            group_size=max(size for _, _, size, *_ in samples),
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            reward_min=min(rewards, default=None),
            reward_max=max(rewards, default=None),
            ends=dict(Counter(end for *_, end in samples)),
        )
