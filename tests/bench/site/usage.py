"""The time to add up a month's usage of ten thousand jobs, by every grouping, on a real Postgres.

    python -m infra.local.testing -- python -m tests.bench.site.usage [--jobs 10000] [--json]

Each job holds two reservations for some hours, spread over the month; most are settled, the last ones are not.
"""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from tests.bench.site.figures import told

START, DAY = datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=1)
RUNS = 5
UNSETTLED = 20


def measured(num_jobs: int) -> dict[str, float]:
    from django.core.management import call_command
    from django.db import connection

    from backend.accounts.models import Project, Team, User
    from backend.pools.models import ResourcePool
    from backend.usage.models import UsageSlice
    from backend.usage.report import GroupBy, usage_of
    from backend.usage.selectors import gpu_seconds_of
    from backend.usage.services import settle_reservations

    call_command("migrate", verbosity=0)
    team, user = Team.objects.create(name="bench"), User.objects.create_user("bench@example.org")
    project = Project.objects.create(team=team, name="bench")
    pool = ResourcePool.objects.create(name="bench", flavor="cpu", capacity=8)
    with connection.cursor() as db:
        for table in ("jobs_job", "pools_reservation"):  # rows that never ran: no guard would let them in
            db.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        fill(team, project, pool, user, num_jobs - UNSETTLED)
        began, num_settled = time.perf_counter(), 0
        while settled := settle_reservations():
            num_settled += settled
        settle_ms = (time.perf_counter() - began) * 1_000 / num_settled
        fill(team, project, pool, user, UNSETTLED)
        db.execute("ANALYZE")
    now = START + timedelta(days=32)
    figures = {"jobs": float(num_jobs), "slices": float(UsageSlice.objects.count()), "settle_each_ms": settle_ms}
    for group_by in GroupBy:
        figures[f"{group_by}_ms"] = median_ms(
            partial(usage_of, team, group_by, first=START.date(), last=date(2026, 1, 31), now=now)
        )
    figures["spent_ms"] = median_ms(partial(gpu_seconds_of, team.pk, START, now=now))
    return figures


def fill(team: Any, project: Any, pool: Any, user: Any, num_jobs: int) -> None:
    from backend.jobs.models import Job
    from backend.pools.models import Reservation

    whose = {"team": team, "project": project, "pool": pool, "created_by": user}
    size = {"devices": 3, "min_devices": 3, "steps": 1, "max_runtime_s": 60}
    jobs = [
        Job(
            name="bench",
            spec={},
            state="cancelled",
            num_attempts=1,
            created_at=START + n * 27 * DAY / num_jobs,
            finished_at=START + 31 * DAY,
            **whose,
            **size,
        )
        for n in range(num_jobs)
    ]
    Job.objects.bulk_create(jobs, batch_size=1_000)
    Reservation.objects.bulk_create(
        [
            Reservation(
                job=job,
                attempt=1,
                pool=pool,
                team=team,
                role=role,
                devices=devices,
                created_at=job.created_at,
                released_at=job.created_at + timedelta(hours=n % 40 + 1),
            )
            for n, job in enumerate(jobs)
            for role, devices in (("trainer", 1), ("rollout", 2))
        ],
        batch_size=2_000,
    )


def median_ms(call: Callable[[], object]) -> float:
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        call()
        took.append((time.perf_counter() - began) * 1_000)
    return statistics.median(took)


if __name__ == "__main__":
    raise SystemExit(told(__doc__, measured, of="jobs", many=10_000))
