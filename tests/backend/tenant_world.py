"""Additions of a new resource to the tenant matrix: one in a team that owns one of everything, and the rows of its
routes and pages."""

import hashlib
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from backend.accounts.models import Invitation, Membership, Project, Role, ServiceAccount, Team, User
from backend.accounts.services import create_api_key
from backend.assets.models import Asset, AssetFile, AssetKind
from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState, ModelVersion, RegisteredModel
from backend.ids import new_id
from backend.jobs.models import Job, JobAttempt
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pages.job.checkpoint_acts import ACTS
from backend.pages.job.controls import CONTROLS
from backend.pages.job.tabs import TABS
from backend.pools.models import Budget, Maintenance, ResourcePool, TeamQuota
from backend.quota_requests.models import QuotaRequest
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.models import Trajectory
from backend.usage.models import AttemptCredit
from backend.usage.pricing.prices import PriceTerms, set_price
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from engine.spec.control import FactBatch
from engine.spec.facts import Fact, TrajectoriesSampled, TrajectorySample
from engine.spec.job import JobSpec
from tests.backend.tenant_callers import ANY_KEY, OUTSIDER, RULERS, WORKERS, Page, Row, World, row

NEXT_CENTURY: Final = {
    "text": "New disks",
    "begins_at": "2101-01-01T00:00:00Z",
    "ends_at": "2101-01-01T04:00:00Z",
    "stops_from": "2100-12-31T23:00:00Z",
}
SECRET_WORDS = "only ants may read this"


def make_world(now: datetime, *, label: str = "") -> World:
    """`label` distinguishes names that must be unique."""
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
    terms = PriceTerms(per_device_second=Decimal(1), valid_from=now, currency="EUR")
    price = set_price(pool, terms, actor="user:1", now=now)
    notice = Maintenance.objects.create(
        text="New disks", begins_at=now, ends_at=now + timedelta(days=3_650), created_at=now
    )
    question = QuotaRequest.objects.create(team=others, pool=pool, wanted=9, reason="For the hive", asked_at=now)
    job = _job(team, project, pool, people["owner"], now)
    schedule_pool(pool.pk, now=now)
    trajectory = _trajectory(job, now)
    checkpoint = _checkpoint(job, step=7, now=now)
    model = RegisteredModel.objects.create(team=team, name="adder", created_at=now, last_number=1)
    promoted = _checkpoint(job, step=5, now=now)
    ModelVersion.objects.create(
        model=model, number=1, checkpoint=promoted, created_at=now, created_by="user:1", lineage={"job": job.pk}
    )
    CheckpointEvaluation.objects.create(
        job=_job(team, project, pool, people["owner"], now), checkpoint=promoted, at=now, environment="running_sums",
        num_prompts=4, reward_mean=0.5, reward_std=0.1, length_mean=3.0,
    )  # fmt: skip
    credit = AttemptCredit.objects.create(
        attempt=_ended_attempt(_job(team, project, pool, people["owner"], now), now), reason="A bad switch",
        given_at=now, given_by="user:1",
    )  # fmt: skip
    asset = _asset(team, now)
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
        "asset_id": asset.pk,
        "part": "0",
        "webhook_id": endpoint.pk,
        "delivery_id": delivery.pk,
        "invitation_id": invitation.pk,
        "account_id": account.pk,
        "user_id": people["viewer"].public_id,
        "key_id": key.pk,
        "name": "running_sums",
        "price_id": str(price.pk),
        "credit_id": str(credit.pk),
        "question_id": question.pk,
        "notice_id": notice.pk,
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


def _ended_attempt(job: Job, now: datetime) -> JobAttempt:
    return JobAttempt.objects.create(
        job=job, n=1, fence=1, submission_id=f"ended-{job.pk}", token_sha256=job.pk, created_at=now, ended_at=now,
        failure_class="platform",
    )  # fmt: skip


def _trajectory(job: Job, now: datetime) -> Trajectory:
    sample = TrajectorySample(
        prompt_ordinal=0, sample=0, version=0, staleness=0, num_tokens=3, reward=1.0, advantage=0.5,
        prompt=SECRET_WORDS, response=SECRET_WORDS,
    )  # fmt: skip
    attempt = job.attempts.get()
    fact = Fact(seq=1, at=now, body=TrajectoriesSampled(step=1, trajectories=[sample]))
    ingest_facts(attempt, FactBatch(attempt=attempt.n, fence=attempt.fence, facts=[fact]), now=now)
    return Trajectory.objects.get(job=job)


def _checkpoint(job: Job, *, step: int, now: datetime) -> Checkpoint:
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=f"file:///nowhere/{step}", manifest_sha256="0" * 64,
        num_bytes=3, created_at=now, state=CheckpointState.COMPLETE, verified_at=now,
    )  # fmt: skip


def _asset(team: Team, now: datetime) -> Asset:
    """An upload without any part."""
    asset = Asset.objects.create(
        team=team, kind=AssetKind.DATA, name="only-ants", num_bytes=5, num_files=2, num_parts=2,
        created_at=now, created_by="user:1",
        expires_at=now + timedelta(days=3_650),
    )  # fmt: skip
    for number, (name, num_bytes) in enumerate({"a.jsonl": 3, "b.jsonl": 2}.items()):
        AssetFile.objects.create(asset=asset, number=number, name=name, num_bytes=num_bytes)
    return asset


# The scope that each route must require, and the body that an authorized caller would send; the objects that it needs
# are created above.
ROWS: Final[dict[str, Row]] = {
    "POST /jobs": row(
        "jobs:write", lambda world: {"project": world.ids["project_id"], "spec": {"name": "another"}}, names_ours=True
    ),
    "GET /jobs": row("jobs:read"),
    "POST /jobs:preview": row("jobs:read", lambda world: {"spec": {"name": "another"}}),
    "GET /jobs/{job_id}": row("jobs:read"),
    "POST /jobs/{job_id}/cancel": row("jobs:write"),
    "POST /jobs/{job_id}/pause": row("jobs:write", None, 409),
    "POST /jobs/{job_id}/resume": row("jobs:write", None, 409),
    "POST /jobs/{job_id}/retry": row("jobs:write", lambda world: {"from": "start"}, 409),
    "POST /jobs/{job_id}/kill": row("jobs:write", None, 409, only_rulers=True),
    "POST /jobs:cancel": row("jobs:write", lambda world: {"ids": [world.ids["job_id"]]}),
    "PATCH /jobs/{job_id}": row("jobs:write", lambda world: {"priority": 3}, 409),
    "GET /jobs/{job_id}/faults": row("jobs:read"),
    "GET /jobs/{job_id}/metrics/names": row("jobs:read"),
    "GET /jobs/{job_id}/attempts": row("jobs:read"),
    "GET /jobs/{job_id}/metrics": row("jobs:read"),
    "GET /jobs/{job_id}/verdict": row("jobs:read"),
    "GET /jobs/{job_id}/trajectories": row("trajectories:read"),
    "GET /trajectories": row("trajectories:read", query="?q=ants"),
    "GET /jobs/{job_id}/trajectories/{trajectory_id}": row("trajectories:read"),
    "GET /jobs/{job_id}/distributions": row("jobs:read", query="?name=reward"),
    "GET /jobs/{job_id}/timeline": row("jobs:read"),
    "GET /jobs/{job_id}/replicas": row("jobs:read"),
    "GET /jobs/{job_id}/ledger": row("jobs:read"),
    "GET /jobs/{job_id}/logs": row("jobs:read"),
    "GET /jobs/{job_id}/logs/stream": row("jobs:read"),
    "GET /jobs/{job_id}/events": row("jobs:read"),
    "GET /jobs/{job_id}/usage": row("usage:read"),
    "GET /jobs/{job_id}/checkpoints": row("checkpoints:read"),
    "GET /jobs/{job_id}/retention": row("checkpoints:read"),
    "PUT /jobs/{job_id}/retention": row("checkpoints:write", lambda world: {"keep_last": 3}),
    "GET /templates": row(ANY_KEY),
    "GET /templates/{name}": row(ANY_KEY),
    "GET /schemas/job-spec": row(ANY_KEY),
    "GET /pools": row("jobs:read"),
    "GET /quota": row("usage:read"),
    "GET /pools/{pool_id}/quotas": row("quota:write"),
    "GET /pools/{pool_id}/queue": row("jobs:read", is_shared=True),
    "POST /pools": row("quota:write", lambda world: {"name": "another", "flavor": "H100", "capacity": 4}),
    "GET /pools/{pool_id}/settings": row("quota:write"),
    "PATCH /pools/{pool_id}/settings": row("quota:write", lambda world: {"capacity": 17}),
    "GET /operator/pools": row("quota:write"),
    "POST /pools/{pool_id}/hosts:drain": row("site:operate", lambda world: {"host": "box-7", "reason": "a fan"}, 409),
    "POST /pools/{pool_id}/hosts:give-back": row("site:operate", lambda world: {"host": "box-7"}),
    "GET /maintenance": row(ANY_KEY, is_shared=True),
    "POST /maintenance": row("site:operate", lambda world: NEXT_CENTURY),
    "PUT /maintenance/{notice_id}": row(
        "site:operate", lambda world: NEXT_CENTURY | {"text": "Newer disks"}, is_shared=True
    ),
    "DELETE /maintenance/{notice_id}": row("site:operate", is_shared=True),
    "GET /operator/teams": row("site:operate"),
    "POST /operator/teams": row(
        "site:operate", lambda world: {"name": f"Wasps {new_id('x')}", "owner": "ina@example.org"}
    ),
    "GET /operator/people": row("site:operate"),
    "POST /operator/people/{user_id}/close": row("site:operate"),
    "POST /operator/people/{user_id}/open": row("site:operate"),
    "POST /operator/people/{user_id}/end-sessions": row("site:operate"),
    "GET /jobs/{job_id}/explain": row("jobs:read"),
    "PUT /pools/{pool_id}/quotas/{team_id}": row("quota:write", lambda world: {"nominal": 7}),
    "GET /pools/{pool_id}/prices": row("usage:read", is_shared=True),
    "POST /pools/{pool_id}/prices": row(
        "quota:write",
        lambda world: {"per_device_second": "0.000555555556", "currency": "EUR"},
    ),
    "DELETE /pools/{pool_id}/prices/{price_id}": row("quota:write", None, 409),
    "GET /operator/credits": row("quota:write"),
    "POST /operator/credits": row(
        "quota:write", lambda world: {"job": world.ids["job_id"], "attempt": 1, "reason": "A bad switch"}, 409
    ),
    "POST /operator/credits/{credit_id}/take-back": row("quota:write"),
    "GET /budgets": row("usage:read"),
    "PUT /budgets/{team_id}": row("quota:write", lambda world: {"gpu_seconds": 5_000_000}),
    "PUT /budgets/{team_id}/money": row("quota:write", lambda world: {"amount": "2500"}),
    "GET /budgets/limits": row("usage:read"),
    "PUT /budgets/projects/{project_id}": row("team:write", lambda world: {"amount": "7200"}),
    "PUT /budgets/people/{user_id}": row("team:write", lambda world: {"amount": "12.5", "unit": "money"}),
    "GET /me": row(ANY_KEY),
    "GET /teams": row("team:read"),
    "PATCH /team": row("team:write", lambda world: {"name": "Bigger ants"}),
    "GET /projects": row("jobs:read"),
    "POST /projects": row("team:write", lambda world: {"name": "Second steps"}),
    "GET /projects/{project_id}": row("jobs:read"),
    "PATCH /projects/{project_id}": row("team:write", lambda world: {"name": "Other steps"}),
    "DELETE /projects/{project_id}": row("team:write", None, 409),
    "GET /audit-log": row("audit:read"),
    "GET /events": row("jobs:read"),
    "POST /webhooks": row("webhooks:write", lambda world: {"url": "https://example.com/hook"}),
    "GET /webhooks": row("webhooks:write"),
    "GET /webhooks/{webhook_id}": row("webhooks:write"),
    "PATCH /webhooks/{webhook_id}": row("webhooks:write", lambda world: {"description": "ours"}),
    "DELETE /webhooks/{webhook_id}": row("webhooks:write"),
    "POST /webhooks/{webhook_id}/rotate-secret": row("webhooks:write"),
    "POST /webhooks/{webhook_id}/test": row("webhooks:write"),
    "GET /webhooks/{webhook_id}/deliveries": row("webhooks:write"),
    "GET /webhooks/{webhook_id}/deliveries/{delivery_id}": row("webhooks:write"),
    "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": row("webhooks:write"),
    "GET /usage": row("usage:read"),
    "GET /checkpoints": row("checkpoints:read"),
    "GET /checkpoints/{checkpoint_id}": row("checkpoints:read"),
    "PATCH /checkpoints/{checkpoint_id}": row("checkpoints:write", lambda world: {"pinned": True}),
    "DELETE /checkpoints/{checkpoint_id}": row("checkpoints:write", None, 409),
    "POST /checkpoints/{checkpoint_id}/download": row("checkpoints:read", None, 409),
    "POST /checkpoints/{checkpoint_id}/promote": row("checkpoints:write", lambda world: {"name": "better-adder"}, 409),
    "POST /checkpoints/{checkpoint_id}/evaluate": row("jobs:write", lambda world: {"prompts": 4}),
    "GET /models": row("checkpoints:read"),
    "GET /models/{model_name}": row("checkpoints:read"),
    "DELETE /models/{model_name}": row("checkpoints:write", None, 409, only_rulers=True),
    "GET /models/{model_name}/versions/{number}": row("checkpoints:read"),
    "PATCH /models/{model_name}/versions/{number}": row("checkpoints:write", lambda world: {"note": "ours"}),
    "DELETE /models/{model_name}/versions/{number}": row("checkpoints:write", None, only_rulers=True),
    "POST /assets": row(
        "data:write",
        lambda world: {"kind": "data", "name": "more", "files": [{"name": "a.jsonl", "num_bytes": 3}]},
    ),
    "GET /assets": row("data:read"),
    "GET /assets/{asset_id}": row("data:read"),
    "GET /assets/{asset_id}/files": row("data:read"),
    "PUT /assets/{asset_id}/files/{number}/parts/{part}": row(
        "data:write", lambda world: b"{}", query=f"?sha256={hashlib.sha256(b'{}').hexdigest()}"
    ),
    "POST /assets/{asset_id}/complete": row("data:write", lambda world: {"num_bytes": 5, "sha256": "0" * 64}, 409),
    "DELETE /assets/{asset_id}": row("data:write"),
    "GET /storage": row("data:read"),
    "PUT /storage/{team_id}": row("quota:write", lambda world: {"max_bytes": 10**12}),
    "GET /members": row("team:read"),
    "GET /members/{user_id}": row("team:read"),
    "PATCH /members/{user_id}": row("team:write", lambda world: {"role": "member"}),
    "DELETE /members/{user_id}": row("team:write"),
    "GET /invitations": row("team:read"),
    "POST /invitations": row("team:write", lambda world: {"email": "ina@example.org"}),
    "DELETE /invitations/{invitation_id}": row("team:write"),
    "GET /service-accounts": row("team:read"),
    "POST /service-accounts": row("team:write", lambda world: {"name": "second robot"}),
    "PATCH /service-accounts/{account_id}": row("team:write", lambda world: {"role": "viewer"}),
    "DELETE /service-accounts/{account_id}": row("team:write"),
    "GET /api-keys": row("team:read"),
    "POST /api-keys": row("team:write", lambda world: {"name": "spare"}),
    "DELETE /api-keys/{key_id}": row(ANY_KEY, speaks_of_itself=True),
}

OPERATOR: Final = frozenset({"operator"})
PAGES: Final[dict[str, Page]] = {
    "home": Page(),
    "jobs": Page(),
    "several_jobs": Page(
        method="POST", form=lambda world: {"act": "cancel", "job": world.ids["job_id"]}, may=WORKERS, asks=True
    ),
    "new_job": Page(may=WORKERS),
    **{tab.page: Page() for tab in TABS},
    **{each.page: Page(method="POST", may=RULERS if each.verb == "kill" else WORKERS, asks=True) for each in CONTROLS},
    "retry_job": Page(method="POST", form=lambda world: {"token": "a" * 24, "from": "start"}, may=WORKERS, asks=True),
    "change_job": Page(method="POST", form=lambda world: {"name": "another"}, may=WORKERS, asks=True),
    "job_retention": Page(
        method="POST",
        form=lambda world: {"keep_last": "3", "keep_best": "1", "metric": "reward/mean"},
        may=WORKERS,
        asks=True,
    ),
    "download_checkpoint": Page(method="POST"),
    **{each.page: Page(method="POST", form=lambda world: {"name": "adder"}, may=WORKERS, asks=True) for each in ACTS},
    "job_live": Page(),
    "job_series": Page(),
    "job_trajectory": Page(),
    "evaluate_checkpoint": Page(method="POST", form=lambda world: {"token": "a" * 24}, may=WORKERS, asks=True),
    "environments": Page(),
    "queue": Page(),
    "request_quota": Page(
        method="POST",
        form=lambda world: {"pool": world.ids["pool_id"], "wanted": "9", "reason": "A sweep"},
        may=WORKERS,
    ),
    "usage": Page(),
    "set_limit": Page(
        method="POST",
        form=lambda world: {"whose": f"project:{world.ids['project_id']}", "amount": "5", "unit": "device_seconds"},
        may=RULERS,
    ),
    "evaluations": Page(),
    "assets": Page(),
    "model": Page(),
    "change_model": Page(method="POST", form=lambda world: {"act": "note", "number": "1", "note": "ours"}, may=WORKERS),
    "keys": Page(),
    "revoke_key": Page(method="POST", may=RULERS),
    "members": Page(),
    "team_rules": Page(method="POST", form=lambda world: {"name": "Ants"}, may=RULERS),
    "change_member": Page(method="POST", form=lambda world: {"role": "member"}, may=RULERS),
    "revoke_invitation": Page(method="POST", may=RULERS),
    "new_service_account": Page(method="POST", form=lambda world: {"name": "second", "role": "viewer"}, may=RULERS),
    "close_service_account": Page(method="POST", may=RULERS),
    "audit": Page(may=RULERS),
    "webhooks": Page(may=RULERS),
    "webhook": Page(may=RULERS),
    "change_webhook": Page(method="POST", form=lambda world: {"act": "disable"}, may=RULERS),
    "renew_webhook_secret": Page(method="POST", may=RULERS),
    "redeliver": Page(method="POST", may=RULERS),
    "status": Page(may=frozenset({"operator"})),
    "operator_pools": Page(may=OPERATOR),
    "operator_new_pool": Page(
        method="POST", form=lambda world: {"name": "second", "flavor": "cpu", "capacity": "4"}, may=OPERATOR
    ),
    "operator_pool": Page(may=OPERATOR),
    "operator_change_pool": Page(
        method="POST", form=lambda world: {"name": "small", "flavor": "cpu", "capacity": "20"}, may=OPERATOR
    ),
    "operator_quota": Page(
        method="POST", form=lambda world: {"team": world.ids["team_id"], "nominal": "3"}, may=OPERATOR
    ),
    "operator_priority": Page(method="POST", form=lambda world: {"priority": "5"}, may=OPERATOR),
    "operator_change_host": Page(method="POST", form=lambda world: {"act": "give_back", "host": "box-7"}, may=OPERATOR),
    "operator_make_way": Page(method="POST", may=OPERATOR),
    "operator_set_price": Page(method="POST", form=lambda world: {"price": "2", "per": "hour"}, may=OPERATOR),
    "operator_withdraw_price": Page(method="POST", may=OPERATOR),
    "operator_teams": Page(may=OPERATOR),
    "operator_budget": Page(method="POST", form=lambda world: {"hours": "100"}, may=OPERATOR),
    "operator_money": Page(method="POST", form=lambda world: {"amount": "2500"}, may=OPERATOR),
    "operator_invite_owner": Page(method="POST", form=lambda world: {"owner": "ina@example.org"}, may=OPERATOR),
    "operator_maintenance": Page(may=OPERATOR),
    "operator_announce": Page(method="POST", form=lambda world: NEXT_CENTURY, may=OPERATOR),
    "operator_change_maintenance": Page(method="POST", form=lambda world: {"act": "end"}, may=OPERATOR),
    "operator_questions": Page(may=OPERATOR),
    "operator_answer": Page(
        method="POST", form=lambda world: {"act": "refuse", "answer": "Not this month"}, may=OPERATOR
    ),
    "operator_credits": Page(may=OPERATOR),
    "operator_give_credit": Page(
        method="POST",
        form=lambda world: {"job": world.ids["job_id"], "attempt": "1", "reason": "A bad switch"},
        may=OPERATOR,
    ),
    "operator_take_back_credit": Page(method="POST", may=OPERATOR),
    "operator_people": Page(may=OPERATOR),
    "operator_change_person": Page(method="POST", form=lambda world: {"act": "close"}, may=OPERATOR),
    "operator_reset_person": Page(method="POST", may=OPERATOR),
}
OPEN_PAGES: Final = {"help", "api_guide", "client", "client_wheel", "accept_invitation"}
"""Anyone with the link may open the page; test_invitations.py covers who may accept."""
