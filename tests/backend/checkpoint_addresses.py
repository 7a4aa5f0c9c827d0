"""Where the engine saves the checkpoints of an attempt."""

from django.conf import settings

from backend.jobs.models import JobAttempt


def checkpoint_address(attempt: JobAttempt, step: int) -> str:
    place = f"jobs/{attempt.job_id}/attempt-{attempt.n}-fence-{attempt.fence}/checkpoints/step-{step:06d}"
    return f"{settings.ENVIRONMENT.store_dir.as_uri()}/{place}"
