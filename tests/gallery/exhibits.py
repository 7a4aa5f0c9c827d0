"""The world of the gallery's screenshots: a team with jobs of every kind and state, an operator, and an empty
site."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import transaction

from backend.accounts.acting import Acting
from backend.accounts.models import Membership, Project, Role, Team, User
from backend.accounts.people.invitations import invite
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState
from backend.checkpoints.registry.versions import promote
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.control.pausing import pause_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.clusters.probes import RayHost, note_found
from backend.pools.models import ResourcePool, TeamQuota
from backend.verdicts.models import JobVerdict
from backend.webhooks.models import WebhookEndpoint
from tests.frontend import seed
from tests.frontend.seed_replicas import told_by_replicas
from tests.verdict.as_jobs import told_as_job
from tests.verdict.replaying import last_step_at
from tests.verdict.runs import run_called

RECORDED = {"recorded learning": "sums", "recorded stuck": "no-signal", "recorded collapse": "verbosity"}
"""Runs recorded from the real engine for the verdict's tests."""
LONG = "A job with a name that somebody wrote without a thought for how wide a page or a phone is, " + "w" * 24
EVALUATES: Final[dict[str, Any]] = {
    "training": {"steps": 0},
    "evaluation": {"prompts": 256},
    "resources": {"trainer_devices": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibits:
    owner: User
    viewer: User
    neighbour: User
    """An owner of another team, which has jobs in the same pool."""
    newcomer: User
    """An owner of a team without jobs."""
    operator: User
    pool: ResourcePool
    jobs: dict[str, Job]
    checkpoint: Checkpoint
    pinned: Checkpoint
    webhook: WebhookEndpoint
    invitation: str
    """The token of its link."""


def make_exhibits() -> Exhibits:
    world, now = seed.make_world(capacity=96), datetime.now(UTC)
    for person in (world.owner, world.viewer, world.outsider):
        seed.may_sign_in(person)
    ago = timedelta(hours=30)
    jobs = {"evidence": seed.failed_with_evidence(world, at=now - ago, trace="x" * 700 + "\n" + seed.TRACE)}
    seed.team_affairs(world)
    jobs |= _on_their_way(world)
    checkpoint, pinned = (_checkpoint(jobs["paused"], step) for step in (40, 20))
    jobs["evaluating"] = _evaluating(world, checkpoint)
    _measured(world, checkpoint, now=now)
    promote(pinned.pk, name="adder", note="The first that adds", actor=f"user:{world.owner.pk}", now=now)
    jobs |= seed.gallery(world)
    jobs["doubted"] = seed.doubted(world, name="A judge that doubts")
    jobs["long"] = seed.running(world, steps_done=3, name=LONG, tags=["x" * 40, "y" * 40])
    for job in jobs.values():
        job.refresh_from_db()
        if job.step and not job.only_evaluates:
            seed.judged(job)
    for kind, name in RECORDED.items():
        run = run_called(name)
        jobs[kind] = told_as_job(world, run, name=kind.capitalize(), until_s=last_step_at(run) + 1, now=now)
    jobs["out of order"] = _out_of_order(world)
    host = RayHost(id="a", name="box-7", labels={"zone": "a"}, cpus=8.0, gpus=0)
    note_found([world.pool], [host], now=now)
    for kind, num in (("running", 3), ("long", 100)):
        jobs[kind].refresh_from_db()
        told_by_replicas(jobs[kind], num, since=jobs[kind].started_at or now, until=datetime.now(UTC))
    _with_long_samples(jobs["long"])
    acting = Acting.person(world.owner, world.team)
    assert acting is not None
    with transaction.atomic():
        _, token = invite(acting, email="ina@example.org", role=Role.MEMBER, now=now)
    return Exhibits(
        owner=world.owner,
        viewer=world.viewer,
        neighbour=world.outsider,
        newcomer=_of_a_new_team(world),
        operator=User.objects.create_user("olga@example.org", seed.PASSWORD, is_staff=True),
        pool=world.pool,
        jobs=jobs,
        checkpoint=checkpoint,
        pinned=pinned,
        webhook=WebhookEndpoint.objects.latest("created_at"),
        invitation=token,
    )


def _on_their_way(world: seed.World) -> dict[str, Job]:
    """One job in each transient state."""
    actor, now = f"user:{world.owner.pk}", datetime.now(UTC)
    starting = seed.submitted(world, name="Coming up")
    schedule_pool(world.pool.pk, now=now)
    found = {"starting": starting}
    for name in ("recovering", "pausing", "paused", "stopping"):
        found[name] = seed.running(world, steps_done=44, name=f"Sums, {name}")
    for name in ("pausing", "paused"):
        pause_job(found[name].pk, actor=actor, now=now)
    cancel_job(found["stopping"].pk, actor=actor, now=now)
    with transaction.atomic():
        recovering, paused = locked_job(found["recovering"].pk), locked_job(found["paused"].pk)
        change_state(recovering, JobState.RECOVERING, actor="reconcile", now=now, message="Its node is gone.")
        change_state(paused, JobState.PAUSED, actor="engine:1", now=now)
    found["validating"] = seed.submitted(
        world,
        name="Being checked",
        environment={"name": "custom", "code": "def environment(params):\n    return None\n"},
    )
    return found


def _checkpoint(job: Job, step: int) -> Checkpoint:
    now = datetime.now(UTC)
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=f"file:///nowhere/{step}", manifest_sha256="0" * 64,
        num_bytes=2_140_000, created_at=now, state=CheckpointState.COMPLETE, verified_at=now,
    )  # fmt: skip


def _evaluating(world: seed.World, of: Checkpoint) -> Job:
    name = f"Evaluate step {of.step} of {of.job.name}"
    return seed.submitted(world, name=name, start_from=of.pk, tags=["evaluation"], **EVALUATES)


def _measured(world: seed.World, of: Checkpoint, *, now: datetime) -> None:
    job = seed.submitted(world, name=f"Evaluate step {of.step} again", start_from=of.pk, **EVALUATES)
    cancel_job(job.pk, actor=f"user:{world.owner.pk}", now=now)
    CheckpointEvaluation.objects.create(
        job=job, checkpoint=of, at=now, environment="running_sums", num_prompts=256, reward_mean=0.61, reward_std=0.4,
        reward_error=0.025, num_samples=4, pass_rate=0.82, pass_error=0.024,
        length_mean=24.0,
    )  # fmt: skip


def _out_of_order(world: seed.World) -> Job:
    """A job whose page fails to render: its verdict is in an unknown format."""
    job = seed.running(world, steps_done=2, name="Said in another tongue")
    seed.judged(job)
    JobVerdict.objects.filter(job=job).update(found=[{"kind": 1}], alarms=[])
    return job


def _of_a_new_team(world: seed.World) -> User:
    team, user = Team.objects.create(name="Newly here"), User.objects.create_user("fay@example.org")
    Membership.objects.create(user=user, team=team, role=Role.OWNER)
    Project.objects.create(team=team, name="First steps")
    TeamQuota.objects.create(pool=world.pool, team=team, nominal=0)
    return user


def _with_long_samples(job: Job) -> None:
    """The maximum length."""
    text = "A long answer goes on, word by word, until the limit cuts it. " * 120
    job.trajectories.update(response=text, prompt=text[:1_500])
