"""One team that owns one of everything, and a caller of every kind."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from backend.accounts.models import Invitation, Membership, Project, Role, ServiceAccount, Team, User
from backend.accounts.scopes import SCOPES, scopes_of_role
from backend.accounts.services import create_api_key, revoke_api_key
from backend.checkpoints.models import Checkpoint, CheckpointState, ModelVersion, RegisteredModel
from backend.jobs.line.scheduling import schedule_pool
from backend.jobs.models import Job
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import Budget, ResourcePool, TeamQuota
from backend.telemetry.ingest import ingest_facts
from backend.telemetry.models import Trajectory
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from engine.spec.control import FactBatch
from engine.spec.facts import Fact, TrajectoriesSampled, TrajectorySample
from engine.spec.job import JobSpec

NOBODY = ("anonymous", "revoked key", "expired key", "key of one who left")
OUTSIDER = "other team's owner"
INSIDERS = ("viewer", "member", "admin", "owner", "operator", "narrow key")
ACTORS = (*NOBODY, OUTSIDER, *INSIDERS)
SECRET_WORDS = "only ants may read this"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    now: datetime
    ids: dict[str, str]
    """By the name of the parameter in a route's path."""
    people: dict[str, User]

    def path(self, template: str) -> str:
        return template.format(**self.ids)

    def key_of(self, actor: str, *, scope: str | None) -> str | None:
        """Made for this one route: `narrow key` is the owner's with every scope but the one that the route asks for."""
        if actor == "anonymous":
            return None
        user = self.people.get(actor, self.people["owner"])
        role = Role(user.memberships.get().role) if user.memberships.exists() else Role.OWNER
        team = user.memberships.get().team if user.memberships.exists() else Team.objects.get(pk=self.ids["team_id"])
        scopes = scopes_of_role(role, is_operator=user.is_staff)
        if actor == "narrow key":
            scopes = scopes - {scope} if scope is not None else scopes
        real_now = datetime.now(UTC)
        expires_at = real_now - timedelta(seconds=1) if actor == "expired key" else None
        key, text = create_api_key(
            team=team, created_by=user, name=actor, scopes=sorted(scopes & set(SCOPES)), expires_at=expires_at
        )
        if actor == "revoked key":
            revoke_api_key(key, now=real_now)
        return text

    def may(self, actor: str, scope: str | None) -> bool:
        if scope is None:
            return True
        if actor == "narrow key":
            return False
        user = self.people[actor]
        return scope in scopes_of_role(Role(user.memberships.get().role), is_operator=user.is_staff)


def make_world(now: datetime, *, label: str = "") -> World:
    """`label` makes what must be the only one of its name another one."""
    team, others = Team.objects.create(name="Ants"), Team.objects.create(name="Bees")
    people = {
        name: _person(name + label, team, role)
        for name, role in {
            "owner": Role.OWNER,
            "admin": Role.ADMIN,
            "member": Role.MEMBER,
            "viewer": Role.VIEWER,
            "operator": Role.MEMBER,
        }.items()
    }
    User.objects.filter(pk=people["operator"].pk).update(is_staff=True)
    people["operator"].refresh_from_db()
    people[OUTSIDER] = _person(f"stranger{label}", others, Role.OWNER)
    people["key of one who left"] = User.objects.create_user(f"gone{label}@example.org")
    project = Project.objects.create(team=team, name="First steps")
    Project.objects.create(team=others, name="Hive")
    pool = ResourcePool.objects.create(name=f"small{label}", flavor="cpu", capacity=16)
    TeamQuota.objects.create(pool=pool, team=team, nominal=8)
    TeamQuota.objects.create(pool=pool, team=others, nominal=8)
    Budget.objects.create(team=team, gpu_seconds=10_000_000)
    job = _job(team, project, pool, people["owner"], now)
    schedule_pool(pool.pk, now=now)
    trajectory = _trajectory(job, now)
    checkpoint = _checkpoint(job, step=7, now=now)
    model = RegisteredModel.objects.create(team=team, name="adder", created_at=now, last_number=1)
    promoted = _checkpoint(job, step=5, now=now)
    ModelVersion.objects.create(
        model=model, number=1, checkpoint=promoted, created_at=now, created_by="user:1", lineage={"job": job.pk}
    )
    endpoint = WebhookEndpoint.objects.create(
        team=team, url="https://example.org/hook", events=["*"], secret="sealed", created_at=now
    )
    delivery = WebhookDelivery.objects.create(
        endpoint=endpoint, message_id="msg_1", type="job.succeeded", body="{}", created_at=now, state="dead",
        finished_at=now,
    )  # fmt: skip
    invitation = Invitation.objects.create(
        team=team, email="ida@example.org", role=Role.MEMBER,
        token_sha256=hashlib.sha256(label.encode()).hexdigest(), invited_by=people["owner"],
        created_at=now, expires_at=now + timedelta(days=3_650),
    )  # fmt: skip
    shadow = User.objects.create_user(f"robot{label}@service.invalid", is_service=True)
    Membership.objects.create(user=shadow, team=team, role=Role.MEMBER)
    account = ServiceAccount.objects.create(team=team, user=shadow, name="robot", created_at=now)
    key, _ = create_api_key(team=team, created_by=people["owner"], name="on the shelf")
    ids = {
        "team_id": team.pk,
        "project_id": project.pk,
        "pool_id": pool.pk,
        "job_id": job.pk,
        "trajectory_id": trajectory.trajectory_id,
        "checkpoint_id": checkpoint.pk,
        "model_name": model.name,
        "number": "1",
        "webhook_id": endpoint.pk,
        "delivery_id": delivery.pk,
        "invitation_id": invitation.pk,
        "account_id": account.pk,
        "user_id": people["viewer"].public_id,
        "key_id": key.pk,
        "name": "running_sums",
        "request_id": "req_x",
    }
    return World(now=now, ids=ids, people=people)


def _person(name: str, team: Team, role: Role) -> User:
    user = User.objects.create_user(f"{name}@example.org")
    Membership.objects.create(user=user, team=team, role=role)
    return user


def _job(team: Team, project: Project, pool: ResourcePool, user: User, now: datetime) -> Job:
    spec = JobSpec.model_validate({"name": SECRET_WORDS})
    return submit_job(team=team, project=project, by=Submitter(user=user, key=None), spec=spec, pool=pool, now=now)


def _trajectory(job: Job, now: datetime) -> Trajectory:
    told = TrajectorySample(
        prompt_ordinal=0, sample=0, version=0, staleness=0, num_tokens=3, reward=1.0, advantage=0.5,
        prompt=SECRET_WORDS, response=SECRET_WORDS,
    )  # fmt: skip
    attempt = job.attempts.get()
    fact = Fact(seq=1, at=now, body=TrajectoriesSampled(step=1, trajectories=[told]))
    ingest_facts(attempt, FactBatch(attempt=attempt.n, fence=attempt.fence, facts=[fact]), now=now)
    return Trajectory.objects.get(job=job)


def _checkpoint(job: Job, *, step: int, now: datetime) -> Checkpoint:
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=f"file:///nowhere/{step}", manifest_sha256="0" * 64,
        num_bytes=3, created_at=now, state=CheckpointState.COMPLETE, verified_at=now,
    )  # fmt: skip
