"""The time of a scheduler's round with a long line, on a real Postgres.

    python -m infra.local.testing -- python -m tests.bench.site.scheduler [--jobs 10000] [--json] [--profile]

The line is made by bulk insert, of several teams with jobs of all sizes; rounds are timed as the service runs them.
Only the throw-away database of `infra.local.testing` is written to.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

import django

NUM_TEAMS, CAPACITY = 10, 64
INSERTED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    round: str
    rounds: int
    started: int
    median_ms: float
    worst_ms: float


def fill(num_jobs: int, now: datetime) -> str:
    """The pool's id."""
    from django.db import transaction

    from backend.accounts.models import Project, Team, User
    from backend.jobs.lifecycle import record_event
    from backend.jobs.models import Job, JobState
    from backend.pools.models import ResourcePool, TeamQuota
    from engine.spec.job import JobSpec

    rng = random.Random(7)
    user = User.objects.create_user("bench@example.org")
    pool = ResourcePool.objects.create(name="bench", flavor="cpu", capacity=CAPACITY)
    teams = [Team.objects.create(name=f"Team {n}") for n in range(NUM_TEAMS)]
    projects = [Project.objects.create(team=team, name="Bench") for team in teams]
    for n, team in enumerate(teams):
        nominal = CAPACITY // NUM_TEAMS
        TeamQuota.objects.create(pool=pool, team=team, nominal=nominal, lend_limit=rng.choice([None, nominal // 2]))
        assert n < NUM_TEAMS
    for first in range(0, num_jobs, INSERTED_AT_ONCE):
        rows = []
        for n in range(first, min(num_jobs, first + INSERTED_AT_ONCE)):
            replicas = rng.choice([1, 1, 2, 3, 5, 7])
            placement = {"preemptible": rng.random() < 0.5, "priority": rng.randint(-2, 2)}
            if rng.random() < 0.3:
                placement["min_replicas"] = 1
            spec = JobSpec.model_validate(
                {"name": f"Job {n}", "rollout": {"replicas": replicas}, "placement": placement}
            )
            project = rng.choice(projects)
            rows.append(
                Job(
                    team_id=project.team_id,
                    project=project,
                    pool=pool,
                    created_by=user,
                    name=spec.name,
                    spec=spec.model_dump(mode="json"),
                    devices=spec.num_devices,
                    min_devices=spec.min_devices,
                    priority=spec.placement.priority,
                    preemptible=spec.placement.preemptible,
                    max_runtime_s=spec.max_runtime_s,
                    steps=spec.training.steps,
                    state=JobState.QUEUED,
                    reason="not_evaluated_yet",
                    created_at=now,
                    queued_at=now - timedelta(seconds=rng.randrange(7_200)),
                )
            )
        with transaction.atomic():
            Job.objects.bulk_create(rows)
            record_event(rows[0], "submitted", actor="bench", now=now)
    return pool.pk


def timed(name: str, schedule: Callable[[], int], rounds: int) -> Timed:
    took, started = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        started += schedule()
        took.append((time.perf_counter() - began) * 1_000)
    return Timed(
        round=name, rounds=rounds, started=started, median_ms=round(statistics.median(took)), worst_ms=round(max(took))
    )


def measure(num_jobs: int, *, profile: bool) -> list[Timed]:
    from django.db import connection

    from backend.jobs.models import Job
    from backend.jobs.queue.scheduling import MOST_EXPLANATIONS, schedule_pool

    now = datetime.now(UTC)
    pool = fill(num_jobs, now)
    with connection.cursor() as db:
        db.execute("ANALYZE")
    clock = [now]

    def schedule(step_s: float) -> Callable[[], int]:
        def one() -> int:
            clock[0] += timedelta(seconds=step_s)
            return schedule_pool(pool, now=clock[0])

        return one

    results = [timed("starts what fits, looks at all", schedule(0), 1)]
    results.append(timed("tells reasons", schedule(0.1), max(1, num_jobs // MOST_EXPLANATIONS)))
    results.append(timed("nothing new", schedule(0.1), 20))
    results.append(timed("writes when it looked", schedule(11), 10))
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    results.append(timed("gives way: reclaims (after 10 min)", schedule(700), 1))
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumulative").print_stats(25)
    assert Job.objects.filter(state="queued").count() + sum(one.started for one in results) >= num_jobs - 64
    return results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--json", action="store_true")
    options.add_argument("--profile", action="store_true")
    chosen = options.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    django.setup()
    from django.core.management import call_command

    from backend.jobs import outbox

    vars(outbox)["publish_soon"] = lambda ids, subject: None  # no subscriber here; the rows are still written
    call_command("migrate", verbosity=0)
    results = measure(chosen.jobs, profile=chosen.profile)
    if chosen.json:
        print(json.dumps({"jobs": chosen.jobs, "cpus": os.cpu_count(), "rounds": [asdict(one) for one in results]}))
        return
    print(
        f"{chosen.jobs} jobs in line, pool of {CAPACITY}, {NUM_TEAMS} teams; "
        f"{os.cpu_count()} CPUs, {platform.machine()}"
    )
    print(f"{'round':40} {'rounds':>6} {'started':>7} {'median ms':>9} {'worst ms':>8}")
    for one in results:
        print(f"{one.round:40} {one.rounds:6} {one.started:7} {one.median_ms:9.0f} {one.worst_ms:8.0f}")


if __name__ == "__main__":
    main()
