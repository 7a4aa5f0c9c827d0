"""Trajectories that answer a question.

Invariants:
- a search reads the index of words, never all texts: the marks of job and team are words of that index, so what others
  wrote costs nothing, and the rows found are filtered by job and team all the same;
- a question that matches too much to be answered in time is refused, and holds nobody up.
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
from backend.telemetry.fulltext.said import Passage, passage_of, read_back
from backend.telemetry.models import Removal, RemovedKind, Trajectory, TrajectoryWords

LONGEST_SEARCH_MS: Final = 5_000
FEW: Final = 2_000
"""So many that answer are looked up; of more, some are among the newest, which are walked until a page is full."""
_ANSWERING: Final = """
SELECT trajectory_id FROM telemetry_trajectorywords WHERE array_to_tsvector(string_to_array(words, ' ')) @@ %s::tsquery
"""
_IN_ORDER: Final = """
(SELECT strpos(words, %s) > 0 FROM telemetry_trajectorywords WHERE trajectory_id = telemetry_trajectory.id)
"""
# The planner takes reading all rows for cheap, because it does not count that their words lie elsewhere; what it then
# thinks of the cost would have it compile. Exact bitmaps spare reading the words again.
_BY_INDEX: Final = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off; SET LOCAL work_mem = '32MB'"


def answering_in_job(job: Job, question: Question) -> QuerySet[Trajectory]:
    """Within `searching`, as is the other."""
    return _answering(Trajectory.objects.filter(job=job), question, mark_of_job(job.pk))


def answering_in_team(team_id: str, question: Question, *, project_id: str | None) -> QuerySet[Trajectory]:
    """Those of jobs whose trajectories are not removed, or going."""
    removed = Removal.objects.filter(job=OuterRef("job"), kind=RemovedKind.TRAJECTORIES, job__state__in=TERMINAL_STATES)
    rows = _answering(
        Trajectory.objects.filter(~Exists(removed), job__team_id=team_id), question, mark_of_team(team_id)
    )
    return rows if project_id is None else rows.filter(job__project_id=project_id)


def _answering(rows: QuerySet[Trajectory], question: Question, mark: str) -> QuerySet[Trajectory]:
    asked = question.in_index(mark)
    with connection.cursor() as db:
        db.execute(f"{_ANSWERING} LIMIT {FEW + 1}", [asked])
        keys = [key for (key,) in db.fetchall()]
    if len(keys) <= FEW:
        rows = rows.filter(pk__in=keys)
    else:  # `IS TRUE`, else it would be joined, and all that answer be read before the newest are picked
        rows = rows.extra(where=[f"(telemetry_trajectory.id IN ({_ANSWERING})) IS TRUE"], params=[asked])
    for phrase in question.phrases(are_unwanted=False):
        rows = rows.extra(where=[_IN_ORDER], params=[phrase])
    for phrase in question.phrases(are_unwanted=True):
        rows = rows.extra(where=[f"NOT {_IN_ORDER}"], params=[phrase])
    return rows


@contextmanager
def searching(*, longest_ms: int = LONGEST_SEARCH_MS) -> Iterator[None]:
    """Within it rows are searched and read. Raises `Invalid`."""
    try:
        with transaction.atomic():
            with connection.cursor() as db:
                db.execute(_BY_INDEX)
                db.execute("SELECT set_config('statement_timeout', %s, true)", [str(longest_ms)])
            yield
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        message = "too much answers this; add a word that fewer say"
        raise Invalid(errors=[FieldError(pointer="/query/q", code="too_broad", message=message)]) from None


def passages_of(rows: Sequence[Trajectory], question: Question) -> Mapping[int, Passage]:
    """By the key of the row."""
    words = TrajectoryWords.objects.filter(pk__in=[row.pk for row in rows]).values_list("pk", "content")
    found = {key: passage_of(read_back(content), question) for key, content in words}
    return {key: passage for key, passage in found.items() if passage is not None}
