"""Finds the trajectories that match a query.

Invariants:
- a search reads the index of words, never all texts: the marks of job and team are words of that index, so other teams'
  texts cost nothing. The rows found are filtered by job and team as well;
- a query that matches too much to be answered in time is refused, and blocks no other.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from django.db import OperationalError, connection, transaction
from django.db.models import Exists, OuterRef, QuerySet
from psycopg.errors import QueryCanceled

from backend.errors import FieldError, Invalid
from backend.jobs.models import TERMINAL_STATES, Job
from backend.telemetry.fulltext.indexing import mark_of_job, mark_of_team
from backend.telemetry.fulltext.question import Question
from backend.telemetry.fulltext.searched_texts import Passage, passage_of, unpack_texts
from backend.telemetry.models import Removal, RemovedKind, Trajectory, TrajectoryWords

LONGEST_SEARCH_MS: Final = 5_000
FEW: Final = 2_000
"""Up to this many matches are looked up; of more, the newest rows are walked until a page is full."""
_ANSWERING: Final = """
SELECT trajectory_id FROM telemetry_trajectorywords WHERE array_to_tsvector(string_to_array(words, ' ')) @@ %s::tsquery
"""
_IN_ORDER: Final = """
(SELECT strpos(words, %s) > 0 FROM telemetry_trajectorywords WHERE trajectory_id = telemetry_trajectory.id)
"""
# The planner considers reading all rows cheap, because it does not count that their words are stored elsewhere, and
# would then use JIT. Exact bitmaps avoid reading the words again.
_BY_INDEX: Final = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off; SET LOCAL work_mem = '32MB'"


def answering_in_job(job: Job, question: Question) -> QuerySet[Trajectory]:
    """Call within `searching`, as for the team."""
    return _answering(Trajectory.objects.filter(job=job), question, mark_of_job(job.pk))


def answering_in_team(team_id: str, question: Question, *, project_id: str | None) -> QuerySet[Trajectory]:
    """Excludes jobs whose trajectories are removed or being removed."""
    removed = Removal.objects.filter(job=OuterRef("job"), kind=RemovedKind.TRAJECTORIES, job__state__in=TERMINAL_STATES)
    rows = _answering(
        Trajectory.objects.filter(~Exists(removed), job__team_id=team_id), question, mark_of_team(team_id)
    )
    return rows if project_id is None else rows.filter(job__project_id=project_id)


def _answering(rows: QuerySet[Trajectory], question: Question, mark: str) -> QuerySet[Trajectory]:
    query = question.in_index(mark)
    with connection.cursor() as db:
        db.execute(f"{_ANSWERING} LIMIT {FEW + 1}", [query])
        keys = [key for (key,) in db.fetchall()]
    if len(keys) <= FEW:
        rows = rows.filter(pk__in=keys)
    else:  # without `IS TRUE` it would be joined, reading all matches before picking the newest
        rows = rows.extra(where=[f"(telemetry_trajectory.id IN ({_ANSWERING})) IS TRUE"], params=[query])
    for phrase in question.phrases(are_unwanted=False):
        rows = rows.extra(where=[_IN_ORDER], params=[phrase])
    for phrase in question.phrases(are_unwanted=True):
        rows = rows.extra(where=[f"NOT {_IN_ORDER}"], params=[phrase])
    return rows


@contextmanager
def searching(*, longest_ms: int = LONGEST_SEARCH_MS) -> Iterator[None]:
    """Context in which rows are searched and read. Raises `Invalid`."""
    try:
        with transaction.atomic():
            with connection.cursor() as db:
                db.execute(_BY_INDEX)
                db.execute("SELECT set_config('statement_timeout', %s, true)", [str(longest_ms)])
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        message = "too many matches; add a more specific word"
        raise Invalid(errors=[FieldError(pointer="/query/q", code="too_broad", message=message)]) from None


def passages_of(rows: Sequence[Trajectory], question: Question) -> Mapping[int, Passage]:
    """Passages by the key of the row."""
    words = TrajectoryWords.objects.filter(pk__in=[row.pk for row in rows]).values_list("pk", "content")
    passages = {key: passage_of(unpack_texts(content), question) for key, content in words}
    return {key: passage for key, passage in passages.items() if passage is not None}
