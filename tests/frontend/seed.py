"""A realistic world: a team, its members, and jobs in every state, created through the models.

`python manage.py shell -c "from tests.frontend.seed import fill; fill()"` fills the environment's database for viewing
all pages; tests call the builders.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction

from backend.accounts.models import Membership, Project, Role, Team, User
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job, next_cursor, record_event
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import Budget, ResourcePool, TeamQuota
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.series.points import NewPoint, store_points
from backend.telemetry.trajectories.storing import store_trajectories
from backend.verdicts.judging import judge_job
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from backend.webhooks.services import create_endpoint
from engine.spec.control import FactBatch
from engine.spec.facts import TrajectoriesSampled, TrajectorySample
from engine.spec.job import JobSpec
from engine.spec.series import find_series
from tests.frontend.seed_samples import samples_of_step

PASSWORD = "still-waters-run-deep"
HELD_OUT_BEFORE, HELD_OUT_AFTER = 0.27, 0.78
SECONDS_A_STEP = 1.1


@dataclass(slots=True)
class World:
    team: Team
    project: Project
    pool: ResourcePool
    owner: User
    viewer: User
    outsider: User
    rng: random.Random = field(default_factory=lambda: random.Random(7))


def make_world(*, capacity: int = 64) -> World:
    team, others = Team.objects.create(name="Reasoning"), Team.objects.create(name="Another team")
    pool = ResourcePool.objects.create(name="local-cpu", flavor="cpu", capacity=capacity)
    for each, nominal in ((team, capacity), (others, 0)):
        TeamQuota.objects.create(pool=pool, team=each, nominal=nominal)
    return World(
        team=team,
        project=Project.objects.create(team=team, name="First steps"),
        pool=pool,
        owner=_member("ada@example.org", team, Role.OWNER),
        viewer=_member("vera@example.org", team, Role.VIEWER),
        outsider=_member("otto@example.org", others, Role.OWNER),
    )


def _member(email: str, team: Team, role: Role) -> User:
    user = User.objects.create_user(email)  # password hashing is slow on purpose: `may_sign_in` sets one
    Membership.objects.create(user=user, team=team, role=role)
    Project.objects.get_or_create(team=team, name="First steps")
    return user


def may_sign_in(user: User) -> User:
    user.set_password(PASSWORD)
    user.save(update_fields=["password"])
    return user


def submitted(
    world: World, *, at: datetime | None = None, user: User | None = None, start_from: str = "", **changes: Any
) -> Job:
    spec = JobSpec.model_validate({"name": "Running sums", "tags": ["demo"], "training": {"steps": 120}} | changes)
    user = user or world.owner
    return submit_job(
        team=world.team,
        project=world.project,
        by=Submitter(user=user, key=None),
        spec=spec,
        pool=world.pool,
        now=at or datetime.now(UTC),
        start_from=start_from,
    )


def running(world: World, *, steps_done: int = 64, at: datetime | None = None, **changes: Any) -> Job:
    """A job that has trained this many steps, ending about now."""
    begun = at or datetime.now(UTC) - timedelta(seconds=14 + steps_done * SECONDS_A_STEP)
    job = submitted(world, at=begun, **changes)
    schedule_pool(world.pool.pk, now=begun + timedelta(seconds=1))
    with transaction.atomic():
        job = locked_job(job.pk)
        record_event(job, "driver_started", actor="engine:1", now=begun + timedelta(seconds=4), data={"host": "node-1"})
        ready = {"num_replicas": 2, "num_parameters": 262_144}
        moment = begun + timedelta(seconds=9)
        change_state(job, JobState.RUNNING, actor="engine:1", now=moment, phase="training", data=ready)
    evaluated(job, version=0, reward=HELD_OUT_BEFORE, at=begun + timedelta(seconds=12))
    with transaction.atomic():  # a single commit is ten times as fast
        for step in range(1, steps_done + 1):
            trained(world, job, step, at=begun + timedelta(seconds=13 + step * SECONDS_A_STEP))
    return job


def doubted(world: World, **changes: Any) -> Job:
    """A job with an alarm: its environment trusts only half of its rewards."""
    job = running(world, steps_done=20, **changes)
    for step in range(21, 33):
        trained(world, job, step, untrusted=0.5)
    return judged(job)


def judged(job: Job) -> Job:
    job.refresh_from_db()
    judge_job(job, now=datetime.now(UTC))
    job.refresh_from_db()
    return job


def trained(
    world: World,
    job: Job,
    step: int,
    *,
    at: datetime | None = None,
    reward: float | None = None,
    untrusted: float = 0.0,
) -> None:
    """One step's metrics and samples, stored as by ingest, with a NOTIFY to open pages."""
    at, rng = at or datetime.now(UTC), world.rng
    learnt = 1 / (1 + math.exp(-(step - 45) / 16))
    mean = 0.25 + 0.55 * learnt + rng.gauss(0, 0.035) if reward is None else reward
    length = 26 - 5 * learnt + rng.gauss(0, 1.2)
    stale = max(0.0, rng.gauss(0.9, 0.25))
    values = {
        "reward/mean": mean,
        "reward/untrusted": untrusted,
        "train/loss": rng.gauss(-0.004, 0.012),
        "train/entropy": 1.25 - 0.85 * learnt + rng.gauss(0, 0.02),
        **({"train/teacher_kl": 0.4 * math.exp(-step / 20)} if job.spec["algorithm"]["teacher"]["source"] else {}),
        "train/grad_norm": abs(rng.gauss(0.6, 0.15)),
        "train/learning_rate": 3e-4,
        "train/logprob_gap_p90": abs(rng.gauss(2e-6, 3e-7)),
        "train/logprob_gap_bound": 1.4e-5,
        "length/mean": length,
        "length/p99": length * 4.2 + rng.gauss(0, 9),
        "throughput/tokens_per_s": 4_800 + 500 * learnt + rng.gauss(0, 260),
        "trainer/step_s": SECONDS_A_STEP + rng.gauss(0, 0.06),
        "train/clip_fraction": abs(rng.gauss(0.03, 0.01)),
        "train/tokens": float(round(16 * length)),
        "trainer/wait_fraction": min(1.0, abs(rng.gauss(0.3, 0.08))),
        "environment/queue_s_mean": abs(rng.gauss(0.2, 0.06)),
        "environment/queue_s_max": 0.6 + abs(rng.gauss(0.0, 0.3)),
        "environment/queue_depth": float(round(24 + abs(rng.gauss(0.0, 8)))),
        "failures/samples": float(step % 7 == 3) + 2.0 * (step % 29 == 11),
        "failures/replacements": 0.0,
        "failures/short_groups": float(step % 7 == 3),
        "failures/groups": float(step % 29 == 11),
        "rollout/kv_used": min(1.0, abs(rng.gauss(0.55, 0.1))),
        "reward/groups_without_signal": max(0.0, 0.4 - 0.3 * learnt + rng.gauss(0, 0.05)),
        "staleness/mean": stale,
        "staleness/max": float(math.ceil(stale) + (rng.random() < 0.15)),
    }
    with transaction.atomic():
        job = locked_job(job.pk)
        Job.objects.filter(pk=job.pk).update(step=step)
        job.step = step
        _store(job, step, values, at=at, cursor=next_cursor(job))
        _store_samples(job, step, samples_of_step(step, mean, rng), at=at)
        if step % 40 == 0 or step == job.steps:
            data = {"step": step, "version": step, "num_bytes": 2_140_000}
            record_event(job, "checkpoint_saved", actor="engine:1", now=at, data=data)
        if step == 52:
            fault = {"component": "rollout/1", "action": "its prompts go back to the pool; a new replica is started"}
            record_event(job, "fault_detected", actor="engine:1", now=at, message="no heartbeat for 5 s", data=fault)


def sampled(job: Job, step: int, samples: Sequence[TrajectorySample]) -> None:
    """Stores more samples, as ingest would."""
    with transaction.atomic():
        _store_samples(locked_job(job.pk), step, samples, at=datetime.now(UTC))


def _store_samples(job: Job, step: int, samples: Sequence[TrajectorySample], *, at: datetime) -> None:
    told = TrajectoriesSampled(step=step, trajectories=list(samples))
    store_trajectories(job, max(1, job.num_attempts), told, cursor=next_cursor(job), now=at)


def evaluated(job: Job, *, version: int, reward: float, at: datetime) -> None:
    data = {"version": version, "num_prompts": 256, "reward_mean": reward, "reward_std": 0.4, "length_mean": 24.0}
    data |= {"num_samples": 1, "reward_error": 0.025, "pass_rate": reward, "pass_error": 0.028}
    with transaction.atomic():
        job = locked_job(job.pk)
        event = record_event(job, "evaluated", actor="engine:1", now=at, data=data)
        told = {"evaluation/reward": reward, "evaluation/pass_rate": reward}
        _store(job, version, told, at=at, cursor=event.cursor)


def finished(world: World, *, steps: int = 120, at: datetime | None = None, **changes: Any) -> Job:
    job = running(world, steps_done=steps, at=at, **({"training": {"steps": steps}} | changes))
    end = (at or datetime.now(UTC)) + timedelta(seconds=15 + (steps + 1) * SECONDS_A_STEP)
    evaluated(job, version=steps, reward=HELD_OUT_AFTER, at=end)
    ended(job, JobState.SUCCEEDED, at=end + timedelta(seconds=2), message=f"All {steps} steps are done.")
    return job


def failed(
    world: World, *, at: datetime | None = None, failure_class: str = "config", message: str = "", **changes: Any
) -> Job:
    job = running(world, steps_done=8, at=at, **changes)
    end = (at or datetime.now(UTC)) + timedelta(seconds=14 + 9 * SECONDS_A_STEP)
    message = message or "median_terms: from 2 to max_terms (64), got 80.0"
    ended(job, JobState.FAILED, at=end, message=message, failure_class=failure_class)
    return job


def ended(job: Job, state: JobState, *, at: datetime | None = None, message: str, failure_class: str = "") -> None:
    at = at or datetime.now(UTC)
    with transaction.atomic():
        job = locked_job(job.pk)
        stopping: dict[str, Any] = {"target_state": state, "failure_class": failure_class, "reason": "engine_finished"}
        change_state(
            job, JobState.STOPPING, actor="engine:1", now=at - timedelta(seconds=1), message=message, **stopping
        )
        change_state(job, state, actor="engine:1", now=at, reason="engine_finished", message=message)


def cancelled(world: World, **changes: Any) -> Job:
    job = submitted(world, **changes)
    cancel_job(job.pk, actor=f"user:{world.owner.pk}", now=datetime.now(UTC))
    return job


def _store(job: Job, step: int, values: dict[str, float], *, at: datetime, cursor: int) -> None:
    assert all(map(find_series, values))
    points = [NewPoint(name=name, step=step, at=at, value=value, cursor=cursor) for name, value in values.items()]
    store_points(job, max(1, job.num_attempts), points)


def gallery(world: World) -> dict[str, Job]:
    """One job of every kind with a different page."""
    now = datetime.now(UTC)
    return {
        "finished": finished(world, at=now - timedelta(hours=26), name="Running sums"),
        "sync": finished(
            world, at=now - timedelta(hours=5), name="Running sums, synchronous", schedule={"name": "sync"}
        ),
        "failed": failed(world, at=now - timedelta(hours=3), name="Long sums, wrong bounds", tags=["sweep", "lr"]),
        "cancelled": cancelled(world, at=now - timedelta(hours=2), name="Seed 41", tags=["sweep"]),
        "hostile": cancelled(
            world,
            at=now - timedelta(hours=1),
            name="<script>alert(1)</script></script> مرحبا بالعالم " + "w" * 60,
            tags=["<b>bold</b>", "x" * 40],
        ),
        "running": running(world, name="Running sums, learning rate 1e-3", optimizer={"learning_rate": 1e-3}),
        "queued": submitted(world, name="Big one", rollout={"replicas": 63}, tags=["sweep"]),
    }


TRACE = 'ZeroDivisionError: division by zero\n  File "grader.py", line 41, in score\n    return right / len(said)'


def failed_with_evidence(world: World, *, at: datetime, trace: str = "") -> Job:
    """Stored as by ingest: log lines of its parts, then the last fact; all of them with the trace, if given."""
    job = running(world, steps_done=12, at=at, name="Sums with a broken grader", tags=["sweep"])
    end, attempt = at + timedelta(seconds=30), job.attempts.get()
    said = (
        ("environment", "error", "the grader raised for prompt 4183: " + (trace or TRACE)),
        ("environment", "error", "its worker was replaced for the third time within a minute"),
        ("trainer", "error", f"no batch for 60 s; giving up\n{trace}".strip()),
    )
    bodies: list[dict[str, Any]] = [
        {"type": "log_lines", "component": part, "lines": [{"at": end, "level": level, "message": message}]}
        for part, level, message in said
    ]
    bodies.append(
        {"type": "fault_detected", "component": "environment", "message": trace or "it dies", "action": "replaced"}
    )
    message = trace or "The environment keeps crashing: division by zero in grader.py, line 41."
    bodies.append({"type": "run_finished", "outcome": "failed", "failure_class": "user_code", "message": message})
    facts = [{"seq": seq, "at": end, "body": body} for seq, body in enumerate(bodies, start=1)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
    ingest_facts(attempt, batch, now=end)
    return job


def team_affairs(world: World) -> None:
    """Webhooks in every state with deliveries, a budget, and another team in the queue."""
    now, acting = datetime.now(UTC), f"user:{world.owner.pk}"
    Budget.objects.create(team=world.team, gpu_seconds=400 * 3_600)
    for url, state in (("https://hooks.example.org/laminar/chat", "delivered"), ("https://example.net/gone", "dead")):
        endpoint, _ = create_endpoint(
            world.team, url=url, events=["*"] if state == "delivered" else ["job.failed"], actor=acting, now=now,
            description="Tells the chat" if state == "delivered" else "",
        )  # fmt: skip
        for number in range(4):
            at = now - timedelta(minutes=7 * number)
            good = {"at": at.isoformat(), "status": 200, "error": "", "ms": 84}
            bad = {"at": at.isoformat(), "status": None, "error": "connection refused", "ms": 12}
            WebhookDelivery.objects.create(
                endpoint=endpoint, message_id=f"evt_{state}_{number}", type="job.failed", created_at=at,
                body='{"type":"job.failed","data":{"job_id":"job_x"}}', state=state, finished_at=at,
                num_attempts=1 if state == "delivered" else 9, attempts=[good if state == "delivered" else bad],
            )  # fmt: skip
        troubled = {"num_failures": 9} if state == "dead" else {"last_success_at": now - timedelta(minutes=3)}
        WebhookEndpoint.objects.filter(pk=endpoint.pk).update(**troubled)
    team = world.outsider.memberships.get().team
    for devices, name in ((20, "Theirs"), (30, "Their plan")):
        spec = {"name": name, "rollout": {"replicas": devices - 1}, "placement": {"preemptible": True}}
        submit_job(
            team=team,
            project=Project.objects.get(team=team),
            by=Submitter(user=world.outsider, key=None),
            pool=world.pool,
            spec=JobSpec.model_validate(spec),
            now=now - timedelta(minutes=40),
        )
        schedule_pool(world.pool.pk, now=now)


def fill() -> None:
    world = make_world()
    may_sign_in(world.owner)
    print(f"{'broken':10} /jobs/{failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=30)).pk}/")
    team_affairs(world)
    for kind, job in {**gallery(world), "doubted": doubted(world, name="A judge that doubts")}.items():
        if job.step:
            judged(job)
        print(f"{kind:10} /jobs/{job.pk}/")
    print(f"sign in as {world.owner.email} with {PASSWORD}")
