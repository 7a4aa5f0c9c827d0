"""A real web server for a bench: uvicorn as the product starts it, on a throw-away Postgres, with a job to write to.

Run a bench that uses it under `python -m infra.local.testing --`, which brings Postgres and sets the environment.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from infra.local.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    url: str
    key: str
    """An API key with every scope."""
    job: str
    token: str
    """Of the job's first attempt."""
    fence: int
    process: subprocess.Popen[bytes]


@contextmanager
def served(
    command: list[str], url: str, *, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server as a process, from when it answers until the block ends."""
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=sys.stderr, stderr=sys.stderr) as process:
        try:
            eventually(
                lambda: httpx.get(url, timeout=2).status_code,
                f"{command[:3]} answers",
                until=lambda status: status < 500,
                ignoring=(httpx.HTTPError,),
                every_s=0.1,
                process=process,
            )
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def laminar(*, workers: int = 1) -> Iterator[Site]:
    """Migrated, with one running job; the attempt speaks through the returned token."""
    port = free_port()
    os.environ.update(
        DJANGO_SETTINGS_MODULE="backend.settings",
        LAMINAR_PUBLIC_URL=f"http://127.0.0.1:{port}",
        LAMINAR_RATE_SCALE="1000",
    )
    made = _made_a_job()
    url = f"http://127.0.0.1:{port}"
    with served(uvicorn(port, workers), f"{url}/healthz", environment=dict(os.environ)) as process:
        yield Site(url=url, process=process, **made)


def uvicorn(port: int, workers: int = 1) -> list[str]:
    command = [sys.executable, "-m", "uvicorn", "backend.asgi:application", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--no-access-log", "--log-level", "warning", "--ws-max-size", "65536", "--workers", str(workers)]


def _made_a_job() -> dict[str, Any]:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from django.db import transaction

    from backend.accounts.keys.scopes import SCOPES
    from backend.accounts.models import Membership, Project, Role, Team, User
    from backend.accounts.services import create_api_key
    from backend.jobs.attempts.tokens import attempt_token
    from backend.jobs.lifecycle import change_state, locked_job
    from backend.jobs.models import JobState
    from backend.jobs.queue.scheduling import schedule_pool
    from backend.jobs.submitting.submit import Submitter, submit_job
    from backend.pools.models import ResourcePool, TeamQuota
    from engine.spec.job import JobSpec

    now = datetime.now(UTC)
    team = Team.objects.create(name="Bench")
    user = User.objects.create_user("bench@example.org")
    Membership.objects.create(user=user, team=team, role=Role.OWNER)
    project = Project.objects.create(team=team, name="Bench")
    pool = ResourcePool.objects.create(name="bench", flavor="cpu", capacity=64)
    TeamQuota.objects.create(pool=pool, team=team, nominal=64)
    key = create_api_key(team=team, created_by=user, name="bench", scopes=tuple(SCOPES))[1]
    spec = JobSpec.model_validate({"name": "Bench", "rollout": {"replicas": 2}})
    job = submit_job(team=team, project=project, by=Submitter(user=user, key=None), spec=spec, pool=pool, now=now)
    schedule_pool(pool.pk, now=now)
    with transaction.atomic():
        locked = locked_job(job.pk)
        attempt = locked.attempts.first()
        if attempt is None:
            raise RuntimeError("the scheduler did not start the bench's job")
        change_state(locked, JobState.RUNNING, actor="engine:1", now=now, phase="training")
    token = attempt_token(job.pk, attempt.n, attempt.fence)
    return {"key": key, "job": job.pk, "token": token, "fence": attempt.fence}
