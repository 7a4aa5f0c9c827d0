"""Searches trajectories by their index, and reads one in full.

Invariants:
- newest step first, and within a step the newest row; across jobs the newest row. The cursor names the last row seen,
  so a page neither repeats nor skips existing rows;
- a full trajectory is the same before and after archiving.
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
    """A filter: all conditions must match; None: any."""

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
        conditions = {
            "step": self.step,
            "prompt_ordinal": self.prompt_ordinal,
            "version": self.version,
            "staleness__gte": self.min_staleness,
            "outcome": self.outcome,
            "end": self.end,
            "reward__gte": self.min_reward,
            "reward__lte": self.max_reward,
        }
        return rows.filter(**{name: value for name, value in conditions.items() if value is not None})


def search_trajectories(
    job: Job, wanted: Wanted, *, cursor: str | None = None, limit: int
) -> tuple[Sequence[Trajectory], str | None]:
    """Returns a page and the cursor of the next one, if any. Raises `Invalid`."""
    behind = Q()
    if cursor is not None:
        last_step, last_id = _read_cursor(cursor)
        behind = Q(step__lt=last_step) | Q(step=last_step, id__lt=last_id)
    with nullcontext() if wanted.question is None else searching():
        rows = Trajectory.objects.filter(job=job) if wanted.question is None else answering_in_job(job, wanted.question)
        page = list(wanted.narrowed(rows).filter(behind).order_by("-step", "-id")[: limit + 1])
    if len(page) <= limit:
        return page, None
    return page[:limit], f"{page[limit - 1].step}.{page[limit - 1].pk}"


def trajectories_of_team(
    team_id: str, wanted: Wanted, *, project_id: str | None = None, cursor: str | None = None, limit: int
) -> tuple[Sequence[Trajectory], str | None]:
    """Across all jobs, the latest first; needs a query. Returns a page and the cursor of the next one. Raises
    `Invalid`."""
    assert wanted.question is not None
    behind = Q() if cursor is None else Q(id__lt=_read_cursor(cursor)[1])
    with searching():
        rows = answering_in_team(team_id, wanted.question, project_id=project_id)
        page = list(wanted.narrowed(rows).filter(behind).order_by("-id")[: limit + 1])
    if len(page) <= limit:
        return page, None
    return page[:limit], f"0.{page[limit - 1].pk}"


def the_trajectory(job: Job, trajectory_id: str) -> Trajectory:
    """Raises `NotFound`."""
    parts = _ID.fullmatch(trajectory_id)
    if parts is not None:
        attempt, step, ordinal, sample = map(int, parts.groups())
        of_job = Trajectory.objects.select_related("file").filter(job=job, attempt=attempt, step=step)
        row = of_job.filter(prompt_ordinal=ordinal, sample=sample).first()
        if row is not None:
            return row
    raise NotFound("Trajectory not found in this job.")


def whole_of(row: Trajectory, store: ObjectStore) -> TrajectorySample:
    """Texts, tokens, log-probs and versions, from the database or the store."""
    waiting = UnarchivedTrajectory.objects.filter(pk=row.pk).first()
    if waiting is not None:
        return TrajectorySample.model_validate_json(decompress(waiting.content))
    if row.file is None or row.row is None:
        row.refresh_from_db(fields=["file", "row"])  # archived between the two reads
    if row.file is None or row.row is None:
        raise NotFound("This trajectory's texts are no longer stored.")
    from backend.telemetry.trajectories.parquet import sample_at  # 37 MB with pyarrow: imported only to read a file

    try:
        return sample_at(store, row.file.key, row.file.num_bytes, row.row)
    except NotStored:
        raise NotFound("This trajectory's texts are no longer stored.") from None
    except StoreUnavailable:
        raise Unavailable("The trajectory store is unavailable right now. Try again later.") from None


def values_of(job: Job, name: str, step: int | None) -> tuple[int | None, Sequence[float]]:
    """The step (None: the newest) and the value of each reported trajectory trained at it, of the latest attempt.
    Untrained ones are chosen to show each reason, so they would distort the distribution."""
    rows = Trajectory.objects.filter(job=job, end="trained")
    if step is None:
        step = rows.order_by("-step").values_list("step", flat=True).first()
    if step is None:
        return None, ()
    newest = rows.filter(step=step).order_by("-attempt").values_list("attempt", flat=True).first()
    newest_rows = rows.filter(step=step, attempt=newest or 0).order_by("id")
    return step, [float(value) for value in newest_rows.values_list(_COUNTED[name], flat=True)]


def _read_cursor(text: str) -> tuple[int, int]:
    parts = _CURSOR.fullmatch(text)
    if parts is None:
        error = FieldError(pointer="/query/cursor", code="cursor", message="must be `next_cursor` of the previous page")
        raise Invalid("The cursor is invalid.", errors=[error])
    return int(parts[1]), int(parts[2])
