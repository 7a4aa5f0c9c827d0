"""Checkpoints for resuming jobs: fills the port `jobs.attempts.resume_points.checkpoints`."""

from backend.accounts.models import Team
from backend.borders.types import is_id
from backend.checkpoints.models import Checkpoint
from backend.jobs.attempts.resume_points import ResumePoint
from backend.jobs.models import Job


class CheckpointsOfJobs:
    def newest_usable(self, job: Job) -> ResumePoint | None:
        newest = Checkpoint.objects.filter(job=job).usable().values_list("pk", "uri", "step").first()
        if newest is None:
            return None
        checkpoint, uri, step = newest
        return ResumePoint(checkpoint=checkpoint, uri=uri, step=step, origin=job, is_usable=True)

    def find(self, team: Team, checkpoint: str) -> ResumePoint | None:
        if not is_id(checkpoint):
            return None
        row = Checkpoint.objects.filter(pk=checkpoint, job__team=team).select_related("job").first()
        if row is None:
            return None
        is_usable = Checkpoint.objects.filter(pk=row.pk).usable().exists()
        return ResumePoint(checkpoint=row.pk, uri=row.uri, step=row.step, origin=row.job, is_usable=is_usable)

    def attempts_with_one(self, job: Job) -> set[int]:
        return set(Checkpoint.objects.filter(job=job).values_list("attempt", flat=True))
