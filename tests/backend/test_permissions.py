"""Who may do what: every route of the API times every actor. A route without a row here fails.

An actor of another team gets 404 for what is ours, never 403; a key without the scope gets 403.
"""

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from ninja.operation import Operation

from backend.accounts.acting import Acting
from backend.accounts.invitations import invite
from backend.accounts.models import ApiKey, Membership, Project, Role, Team, User
from backend.accounts.service_accounts import open_service_account
from backend.accounts.services import create_api_key, revoke_api_key
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.checkpoints.registry import promote
from backend.jobs.models import Job, JobAttempt
from backend.pools.models import ResourcePool
from backend.rest import api as rest_api
from backend.telemetry.trajectories import store_trajectories
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from engine.spec.facts import TrajectoriesSampled, TrajectorySample
from tests.backend.conftest import NOW

STRANGERS = dict.fromkeys(("anonymous", "revoked", "expired"), 401)
INSIDERS = ("owner", "admin", "member", "viewer", "outsider", "read only", "write only")

ANY_KEY = STRANGERS | dict.fromkeys(INSIDERS, 200)
READS_OWN = ANY_KEY | {"write only": 403}
READS_JOB = READS_OWN | {"outsider": 404}
WRITES_JOB = STRANGERS | {"owner": 202, "admin": 202, "member": 202, "outsider": 404}
WRITES_JOB |= dict.fromkeys(("viewer", "read only"), 403) | {"write only": 202}
READS_ROLLOUTS = READS_JOB | {"read only": 403}
OPERATES = STRANGERS | dict.fromkeys(INSIDERS, 403)
READS_TEAM = ANY_KEY | {"read only": 403, "write only": 403}
READS_MEMBER = READS_TEAM | {"outsider": 404}
RULES_TEAM = STRANGERS | dict.fromkeys(INSIDERS, 403) | dict.fromkeys(("owner", "admin", "outsider"), 200)
MAKES = RULES_TEAM | dict.fromkeys(("owner", "admin", "outsider"), 201)
CHANGES = RULES_TEAM | {"outsider": 404}
ENDS = CHANGES | {"owner": 204, "admin": 204}
WORKS_ON = CHANGES | {"member": 200}

MATRIX: dict[tuple[str, str], dict[str, int]] = {
    ("GET", "/me"): ANY_KEY,
    ("GET", "/templates"): ANY_KEY,
    ("GET", "/templates/{name}"): ANY_KEY,
    ("GET", "/schemas/job-spec"): ANY_KEY,
    ("GET", "/projects"): READS_OWN,
    ("GET", "/pools"): READS_OWN,
    ("GET", "/jobs"): READS_OWN,
    ("GET", "/pools/{pool_id}/queue"): READS_OWN,
    ("GET", "/pools/{pool_id}/quotas"): OPERATES,
    ("PUT", "/pools/{pool_id}/quotas/{team_id}"): OPERATES,
    ("PUT", "/budgets/{team_id}"): OPERATES,
    ("GET", "/quota"): READS_TEAM,
    ("GET", "/budgets"): READS_TEAM,
    ("GET", "/jobs/{job_id}/explain"): READS_JOB,
    ("POST", "/jobs"): WRITES_JOB,
    ("POST", "/jobs:preview"): READS_OWN,
    ("GET", "/jobs/{job_id}"): READS_JOB,
    ("GET", "/jobs/{job_id}/events"): READS_JOB,
    ("GET", "/jobs/{job_id}/attempts"): READS_JOB,
    ("GET", "/jobs/{job_id}/metrics"): READS_JOB,
    ("GET", "/jobs/{job_id}/metrics/names"): READS_JOB,
    ("GET", "/jobs/{job_id}/rollouts"): READS_ROLLOUTS,
    ("GET", "/jobs/{job_id}/rollouts/{trajectory_id}"): READS_ROLLOUTS,
    ("GET", "/jobs/{job_id}/distributions"): READS_JOB,
    ("GET", "/jobs/{job_id}/timeline"): READS_JOB,
    ("GET", "/jobs/{job_id}/logs"): READS_JOB,
    ("GET", "/jobs/{job_id}/logs/stream"): READS_JOB,
    ("GET", "/jobs/{job_id}/checkpoints"): READS_MEMBER,
    ("GET", "/jobs/{job_id}/retention"): READS_MEMBER,
    ("PUT", "/jobs/{job_id}/retention"): WORKS_ON,
    ("GET", "/checkpoints"): READS_TEAM,
    ("GET", "/checkpoints/{checkpoint_id}"): READS_MEMBER,
    ("PATCH", "/checkpoints/{checkpoint_id}"): WORKS_ON,
    ("DELETE", "/checkpoints/{checkpoint_id}"): WORKS_ON | dict.fromkeys(("owner", "admin", "member"), 204),
    ("POST", "/checkpoints/{checkpoint_id}/download"): READS_MEMBER,
    ("POST", "/checkpoints/{checkpoint_id}/promote"): WORKS_ON | dict.fromkeys(("owner", "admin", "member"), 201),
    ("GET", "/models"): READS_TEAM,
    ("GET", "/models/{model_name}"): READS_MEMBER,
    ("GET", "/usage"): READS_TEAM,
    ("GET", "/jobs/{job_id}/usage"): READS_MEMBER,
    ("POST", "/jobs/{job_id}/cancel"): WRITES_JOB,
    ("POST", "/jobs/{job_id}/pause"): WRITES_JOB | {actor: 409 for actor in WRITES_JOB if WRITES_JOB[actor] == 202},
    ("POST", "/jobs/{job_id}/resume"): WRITES_JOB | {actor: 200 for actor in WRITES_JOB if WRITES_JOB[actor] == 202},
    ("POST", "/jobs/{job_id}/retry"): WRITES_JOB | {actor: 409 for actor in WRITES_JOB if WRITES_JOB[actor] == 202},
    ("POST", "/jobs/{job_id}/kill"): WRITES_JOB | {"member": 403},
    ("GET", "/jobs/{job_id}/faults"): READS_JOB,
    ("PATCH", "/jobs/{job_id}"): WRITES_JOB | {actor: 200 for actor in WRITES_JOB if WRITES_JOB[actor] == 202},
    ("POST", "/jobs:cancel"): WRITES_JOB | {actor: 200 for actor in WRITES_JOB if WRITES_JOB[actor] in (202, 404)},
    ("GET", "/teams"): READS_TEAM,
    ("PATCH", "/team"): RULES_TEAM,
    ("POST", "/projects"): MAKES,
    ("GET", "/projects/{project_id}"): READS_JOB,
    ("PATCH", "/projects/{project_id}"): CHANGES,
    ("DELETE", "/projects/{project_id}"): ENDS,
    ("GET", "/members"): READS_TEAM,
    ("GET", "/members/{user_id}"): READS_MEMBER,
    ("PATCH", "/members/{user_id}"): CHANGES,
    ("DELETE", "/members/{user_id}"): ENDS,
    ("GET", "/invitations"): READS_TEAM,
    ("POST", "/invitations"): MAKES,
    ("DELETE", "/invitations/{invitation_id}"): ENDS,
    ("GET", "/service-accounts"): READS_TEAM,
    ("POST", "/service-accounts"): MAKES,
    ("PATCH", "/service-accounts/{account_id}"): CHANGES,
    ("DELETE", "/service-accounts/{account_id}"): ENDS,
    ("GET", "/api-keys"): READS_TEAM,
    ("POST", "/api-keys"): MAKES,
    ("DELETE", "/api-keys/{key_id}"): ENDS,
    ("GET", "/audit-log"): RULES_TEAM,
    ("GET", "/events"): READS_OWN,
    ("GET", "/webhooks"): RULES_TEAM,
    ("POST", "/webhooks"): MAKES,
    ("GET", "/webhooks/{webhook_id}"): CHANGES,
    ("PATCH", "/webhooks/{webhook_id}"): CHANGES,
    ("DELETE", "/webhooks/{webhook_id}"): ENDS,
    ("POST", "/webhooks/{webhook_id}/rotate-secret"): CHANGES,
    ("POST", "/webhooks/{webhook_id}/test"): CHANGES | {"owner": 202, "admin": 202},
    ("GET", "/webhooks/{webhook_id}/deliveries"): CHANGES,
    ("GET", "/webhooks/{webhook_id}/deliveries/{delivery_id}"): CHANGES,
    ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): CHANGES | {"owner": 202, "admin": 202},
}

# What a route is sent, where it wants a body, and where its address names something: each made anew for every actor.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PATCH", "/team"): {"name": "Ants and friends"},
    ("PATCH", "/jobs/{job_id}"): {"name": "Other sums"},
    ("POST", "/jobs:cancel"): {"ids": ["job_00000000000000000000"]},
    ("POST", "/jobs/{job_id}/retry"): {"from": "start"},
    ("PUT", "/jobs/{job_id}/retention"): {"keep_last": 2},
    ("PATCH", "/checkpoints/{checkpoint_id}"): {"pinned": True},
    ("POST", "/checkpoints/{checkpoint_id}/promote"): {"name": "sums"},
    ("POST", "/projects"): {"name": "Second steps"},
    ("PATCH", "/projects/{project_id}"): {"name": "Other steps"},
    ("PATCH", "/members/{user_id}"): {"role": "viewer"},
    ("POST", "/invitations"): {"email": "new@example.org"},
    ("POST", "/service-accounts"): {"name": "nightly"},
    ("PATCH", "/service-accounts/{account_id}"): {"role": "viewer"},
    ("POST", "/api-keys"): {"name": "laptop", "scopes": ["jobs:read"]},
    ("POST", "/webhooks"): {"url": "https://example.org/hook"},
    ("PATCH", "/webhooks/{webhook_id}"): {"description": "ours"},
}


def operations() -> Iterator[tuple[str, str, Operation]]:
    for bound in rest_api._get_bound_routers():
        for path, view in bound.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield method, bound.prefix + path, operation


ROUTES = sorted((method, path) for method, path, _ in operations())


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert not set(ROUTES) - set(MATRIX), "give the new route a row in MATRIX"
    assert not set(MATRIX) - set(ROUTES)


def test_every_route_asks_for_a_key() -> None:
    assert all(operation.auth_callbacks for _, _, operation in operations())


@pytest.fixture
def keys(
    make_key: Callable[..., str],
    alice: User,
    adam: User,
    bob: User,
    vera: User,
    charlie: User,
    key_row: Callable[[str], ApiKey],
) -> dict[str, str | None]:
    revoked = make_key(alice)
    revoke_api_key(key_row(revoked), now=datetime.now(UTC))
    return {
        "anonymous": None,
        "revoked": revoked,
        "expired": make_key(alice, expires_in=timedelta(seconds=-1)),
        "owner": make_key(alice),
        "admin": make_key(adam),
        "member": make_key(bob),
        "viewer": make_key(vera),
        "outsider": make_key(charlie),
        "read only": make_key(alice, scopes=("jobs:read",)),
        "write only": make_key(alice, scopes=("jobs:write",)),
    }


SAMPLE: dict[str, Any] = {"prompt_ordinal": 0, "sample": 0, "version": 0, "staleness": 0, "num_tokens": 1}
SAMPLE |= {"reward": 1.0, "advantage": 0.0, "prompt": "1 + 1", "response": "2"}


@pytest.fixture
def things(team: Team, alice: User) -> dict[str, Callable[[], str]]:
    """For each placeholder of an address: a new thing of alice's team, and its id."""
    owner, num = Acting(user=alice, team=team, role=Role.OWNER), itertools.count()

    def member() -> str:
        user = User.objects.create_user(f"member-{next(num)}@example.org")
        Membership.objects.create(user=user, team=team, role=Role.MEMBER)
        return user.public_id

    def account() -> str:
        name = f"robot {next(num)}"
        return open_service_account(owner, name=name, role=Role.MEMBER, project=None, now=NOW).pk

    def trajectory() -> str:
        rows = [TrajectorySample(**SAMPLE)]
        sampled = TrajectoriesSampled(step=1, trajectories=rows)
        store_trajectories(Job.objects.get(), 1, sampled, cursor=1, now=NOW)
        return "traj_1_1_0_0"

    def checkpoint() -> str:
        job = Job.objects.get()
        uri = (settings.ENVIRONMENT.store_dir / "jobs" / job.pk / f"step-{next(num)}").as_uri()
        row = Checkpoint(job=job, attempt=1, step=next(num), version=1, uri=uri, num_bytes=0, created_at=NOW)
        row.state = CheckpointState.COMPLETE
        row.save()
        return row.pk

    def model() -> str:
        return promote(checkpoint(), name=f"sums-{next(num)}", note="", actor="test", now=NOW)[0].model.name

    def webhook() -> str:
        address = "https://example.org/hook"
        return WebhookEndpoint.objects.create(team=team, url=address, events=["*"], secret="", created_at=NOW).pk

    def delivery() -> str:
        fields = {"message_id": "evt_1", "type": "job.x", "body": "{}", "due_at": NOW, "created_at": NOW}
        return WebhookDelivery.objects.create(endpoint=WebhookEndpoint.objects.get(), **fields).pk

    return {
        "{pool_id}": lambda: ResourcePool.objects.get().pk,
        "{team_id}": lambda: team.pk,
        "{webhook_id}": webhook,
        "{delivery_id}": delivery,
        "{checkpoint_id}": checkpoint,
        "{model_name}": model,
        "{trajectory_id}": trajectory,
        "{user_id}": member,
        "{account_id}": account,
        "{project_id}": lambda: Project.objects.create(team=team, name=f"Steps {next(num)}").pk,
        "{invitation_id}": lambda: invite(owner, email=f"i{next(num)}@example.org", role=Role.VIEWER, now=NOW)[0].pk,
        "{key_id}": lambda: create_api_key(team=team, created_by=alice, name="laptop")[0].pk,
    }


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_matrix(
    keys: dict[str, str | None],
    anonymous: Any,
    method: str,
    path: str,
    make_job: Any,
    project: Project,
    things: dict[str, Callable[[], str]],
) -> None:
    for actor, status in MATRIX[method, path].items():
        with transaction.atomic():  # every actor finds the same world
            job = make_job()
            before = Job.objects.count()
            body = BODIES.get((method, path))
            if method == "POST" and path in {"/jobs", "/jobs:preview"}:
                body = {"spec": {"name": "Sums", "placement": {"preemptible": True}}}  # the outsider only borrows
                body |= {} if "preview" in path else {"project": project.pk}
            anonymous.key = keys[actor]
            address = path.replace("{job_id}", job.pk).replace("{name}", "running_sums")
            for placeholder, make_thing in things.items():
                if placeholder in path:
                    address = address.replace(placeholder, make_thing())
            response = anonymous.request(method, address, body)
            assert response.status_code == status, (actor, response.content)
            if actor == "outsider" and status < 300 and not response.streaming:
                assert job.pk not in response.content.decode() and project.pk not in response.content.decode()
            if status >= 400:
                job.refresh_from_db()
                assert job.state == "queued", "a refused request changes nothing"
                assert Job.objects.count() == before, "a refused request writes nothing"
            transaction.set_rollback(True)


def test_an_outsider_cannot_tell_ours_from_what_does_not_exist(
    api_of: Any, charlie: User, job: Job, attempt: JobAttempt
) -> None:
    outsider = api_of(charlie)
    unknown = "job_" + "0" * 20
    for method, path in ROUTES:
        if "{job_id}" not in path:
            continue
        ours, nothing = (outsider.request(method, path.replace("{job_id}", one)).json() for one in (job.pk, unknown))
        for document in (ours, nothing):
            del document["request_id"], document["instance"]
        assert ours == nothing
    job.refresh_from_db()
    assert job.state == "starting"
