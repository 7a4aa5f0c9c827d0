"""Finding trajectories by their index, and one of them whole.

Invariants:
- newest step first, and within a step the newest row, of several jobs just the newest row; the cursor names the last
  row seen, so a page neither repeats nor skips what was there;
- a whole trajectory is the same before and after it was archived.
"""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from django.db.models import Q, QuerySet

from backend.api.problems import Unavailable
from backend.errors import FieldError, Invalid, NotFound
from backend.jobs.models import Job
from backend.store.port import NotStored, ObjectStore, StoreUnavailable
from backend.telemetry.compression import decompress
from backend.telemetry.fulltext.finding import answering_in_job, answering_in_team, searching
from backend.telemetry.fulltext.question import Question
from backend.telemetry.models import Trajectory, UnarchivedTrajectory
from engine.spec.facts import TrajectorySample

_CURSOR: Final = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
_COUNTED: Final = {"reward": "reward", "advantage": "advantage", "length": "num_tokens", "staleness": "staleness"}
_ID: Final = re.compile(r"traj_([0-9]{1,9})_([0-9]{1,18})_([0-9]{1,18})_([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All of it, of each trajectory; None: any."""

    step: int | None = None
    prompt_ordinal: int | None = None
    version: int | None = None
    min_staleness: int | None = None
    outcome: str | None = None
    end: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    question: Question | None = None

    def narrowed(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        asked = {
            "step": self.step,
            "prompt_ordinal": self.prompt_ordinal,
            "version": self.version,
            "staleness__gte": self.min_staleness,
            "outcome": self.outcome,
            "end": self.end,
            "reward__gte": self.min_reward,
            "reward__lte": self.max_reward,
        }
        return rows.filter(**{name: value for name, value in asked.items() if value is not None})


def trajectories_found(
    job: Job, wanted: Wanted, *, cursor: str | None = None, limit: int
) -> tuple[Sequence[Trajectory], str | None]:
    """And the cursor of the next page, if there is one. Raises `Invalid`."""
    behind = Q()
    if cursor is not None:
        last_step, last_id = _read_cursor(cursor)
        behind = Q(step__lt=last_step) | Q(step=last_step, id__lt=last_id)
    with nullcontext() if wanted.question is None else searching():
        rows = Trajectory.objects.filter(job=job) if wanted.question is None else answering_in_job(job, wanted.question)
        found = list(wanted.narrowed(rows).filter(behind).order_by("-step", "-id")[: limit + 1])
    if len(found) <= limit:
        return found, None
    return found[:limit], f"{found[limit - 1].step}.{found[limit - 1].pk}"


def trajectories_of_team(
    team_id: str, wanted: Wanted, *, project_id: str | None = None, cursor: str | None = None, limit: int
) -> tuple[Sequence[Trajectory], str | None]:
    """Of every job, those that came last first, where there is a question; and the cursor of the next page.
    Raises `Invalid`."""
    assert wanted.question is not None
    behind = Q() if cursor is None else Q(id__lt=_read_cursor(cursor)[1])
    with searching():
        rows = answering_in_team(team_id, wanted.question, project_id=project_id)
        found = list(wanted.narrowed(rows).filter(behind).order_by("-id")[: limit + 1])
    if len(found) <= limit:
        return found, None
    return found[:limit], f"0.{found[limit - 1].pk}"


def the_trajectory(job: Job, trajectory_id: str) -> Trajectory:
    """Raises `NotFound`."""
    parts = _ID.fullmatch(trajectory_id)
    if parts is not None:
        attempt, step, ordinal, sample = map(int, parts.groups())
        of_job = Trajectory.objects.select_related("file").filter(job=job, attempt=attempt, step=step)
        row = of_job.filter(prompt_ordinal=ordinal, sample=sample).first()
        if row is not None:
            return row
    raise NotFound("There is no trajectory with this id in this job.")


def whole_of(row: Trajectory, store: ObjectStore) -> TrajectorySample:
    """Texts, tokens, log-probs and versions, wherever they are."""
    waiting = UnarchivedTrajectory.objects.filter(pk=row.pk).first()
    if waiting is not None:
        return TrajectorySample.model_validate_json(decompress(waiting.content))
    if row.file is None or row.row is None:
        row.refresh_from_db(fields=["file", "row"])  # archived between the two reads
    if row.file is None or row.row is None:
        raise NotFound("This trajectory's texts are no longer kept.")
    from backend.telemetry.parquet import sample_at  # 37 MB with pyarrow: only for who reads a file

    try:
        return sample_at(store, row.file.key, row.file.num_bytes, row.row)
    except NotStored:
        raise NotFound("This trajectory's texts are no longer kept.") from None
    except StoreUnavailable:
        raise Unavailable("The store of trajectories does not answer right now.") from None


def values_of(job: Job, name: str, step: int | None) -> tuple[int | None, Sequence[float]]:
    """The step (None: the newest one) and the value of each trajectory trained at it that was told; of attempts, the
    latest's. Those that were not trained are chosen to show each reason, so they would bend the picture."""
    rows = Trajectory.objects.filter(job=job, end="trained")
    if step is None:
        step = rows.order_by("-step").values_list("step", flat=True).first()
    if step is None:
        return None, ()
    newest = rows.filter(step=step).order_by("-attempt").values_list("attempt", flat=True).first()
    found = rows.filter(step=step, attempt=newest or 0).order_by("id")
    return step, [float(value) for value in found.values_list(_COUNTED[name], flat=True)]


def _read_cursor(text: str) -> tuple[int, int]:
    parts = _CURSOR.fullmatch(text)
    if parts is None:
        error = FieldError(pointer="/query/cursor", code="cursor", message="use `next_cursor` of the page before")
        raise Invalid("This is not a cursor of ours.", errors=[error])
    return int(parts[1]), int(parts[2])
