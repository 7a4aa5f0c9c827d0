"""Writing the trajectories that a step's facts chose to show."""

from backend.jobs.models import Job
from backend.telemetry.models import Trajectory
from engine.spec.facts import TrajectoriesSampled


def store_trajectories(job: Job, attempt: int, sampled: TrajectoriesSampled, *, cursor: int) -> None:
    Trajectory.objects.bulk_create(
        (
            Trajectory(
                job=job,
                attempt=attempt,
                step=sampled.step,
                cursor=cursor,
                **sample.model_dump(exclude={"trace"}),
            )
            for sample in sampled.trajectories
        ),
        ignore_conflicts=True,
    )
