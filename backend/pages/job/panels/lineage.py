"""A job's predecessors and successors: retries, and jobs that continue from its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job

MOST_SHOWN: Final = 5  # newest successors


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    retry_of: Job | None
    began_with: Checkpoint | None
    retries: Sequence[Job]
    continued_by: Sequence[tuple[Job, int]]
    """With the step that each started from; excludes retries and evaluations."""


def lineage_of(job: Job) -> Lineage:
    own = dict(Checkpoint.objects.filter(job=job).values_list("pk", "step"))
    of_team = Job.objects.filter(team=job.team_id)
    continued = of_team.filter(start_from__in=own, steps__gt=0, parent=None).order_by("-created_at", "-id")
    first = Checkpoint.objects.filter(pk=job.start_from, job__team=job.team_id).select_related("job").first()
    return Lineage(
        retry_of=of_team.filter(pk=job.parent_id).first() if job.parent_id else None,
        began_with=first if job.start_from else None,
        retries=list(of_team.filter(parent=job).order_by("-created_at", "-id")[:MOST_SHOWN]),
        continued_by=[(each, own[each.start_from]) for each in continued[:MOST_SHOWN]],
    )
