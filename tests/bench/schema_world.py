"""What `schema_calls` calls: a server with a team in it, people of every role, and things that have ids."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import uvicorn

ROLES = ("owner", "admin", "member", "viewer")


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """The base address of a uvicorn in a thread of this process."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, lifespan="off", log_level="error",
                            timeout_graceful_shutdown=2)  # fmt: skip
    web = uvicorn.Server(config)
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    web.should_exit = True
    thread.join(20)


@dataclass(slots=True)
class World:
    document: dict[str, Any]
    base_url: str
    team: Any
    project: Any
    pool: Any
    people: dict[str, Any]

    def fresh_keys(self) -> dict[str, str | None]:
        """New ones: calls may have revoked the former, or changed what their owners may do."""
        from backend.accounts.models import Membership
        from backend.accounts.scopes import SCOPES
        from backend.accounts.services import create_api_key

        keys: dict[str, str | None] = {"nobody": None}
        for role, person in self.people.items():
            Membership.objects.update_or_create(user=person, team=self.team, defaults={"role": role})
            scopes = tuple(SCOPES)
            keys[role] = create_api_key(team=self.team, created_by=person, name="bench", scopes=scopes)[1]
        return keys

    def fresh_things(self) -> dict[str, list[str]]:
        """New ones of the team, by the names of the path parameters."""
        from backend.jobs.services import submit_job
        from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
        from engine.spec.job import JobSpec

        now = datetime.now(UTC)
        job = submit_job(
            team=self.team, project=self.project, actor_user=self.people["owner"], pool=self.pool, actor="user:bench",
            spec=JobSpec.model_validate({"name": "Sums"}), now=now,
        )  # fmt: skip
        endpoint = WebhookEndpoint.objects.create(
            team=self.team, url="https://example.org", events=["*"], secret="", created_at=now
        )
        delivery = WebhookDelivery.objects.create(
            endpoint=endpoint, message_id="evt_1", type="job.x", body="{}", due_at=now, created_at=now
        )
        return {
            "job_id": [job.pk],
            "project_id": [self.project.pk],
            "pool_id": [self.pool.pk],
            "team_id": [self.team.pk],
            "webhook_id": [endpoint.pk],
            "delivery_id": [delivery.pk],
            "name": ["running_sums"],
        }


def build(base_url: str) -> World:
    from backend.accounts.models import Membership, Project, Team, User
    from backend.pools.models import ResourcePool, TeamQuota
    from backend.rest import api

    team = Team.objects.create(name="Bench")
    people = {}
    for role in ROLES:
        people[role] = User.objects.create_user(f"{role}@bench.example.org")
        Membership.objects.create(user=people[role], team=team, role=role)
    pool = ResourcePool.objects.create(name="bench", flavor="cpu", capacity=8)
    TeamQuota.objects.create(pool=pool, team=team, nominal=8)
    project = Project.objects.create(team=team, name="Bench")
    document = api.get_openapi_schema()
    readable = _with_text_statuses(document)
    return World(document=readable, base_url=base_url, team=team, project=project, pool=pool, people=people)


def _with_text_statuses(document: Any) -> dict[str, Any]:
    """As it is served: JSON has no numbers for names."""
    import json

    from ninja.responses import NinjaJSONEncoder

    found: dict[str, Any] = json.loads(json.dumps(document, cls=NinjaJSONEncoder))
    return found


@contextmanager
def a_world() -> Iterator[World]:
    """For a process of its own, in the environment of `infra.local.testing`."""
    import os

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    from django.core.management import call_command

    from backend.asgi import application

    call_command("migrate", verbosity=0)
    with serving(application) as base_url:
        yield build(base_url)
