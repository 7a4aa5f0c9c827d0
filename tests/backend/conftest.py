"""Builders: alice and bob share a team, vera is its viewer, charlie is an outsider with his own team.

Nothing here connects to Ray or a broker; time is the constant NOW unless a test moves it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest
from django.db import connection, transaction
from django.test import Client

from backend.accounts.keys.scopes import SCOPES
from backend.accounts.models import ApiKey, Membership, Project, Role, Team, User
from backend.accounts.services import create_api_key
from backend.assets.models import Asset, AssetOrigin, AssetState
from backend.checkpoints.models import Checkpoint
from backend.jobs.models import Job, JobAttempt
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import ResourcePool, TeamQuota
from engine.spec.job import JobSpec
from tests.backend.browser_sockets import server, watch  # noqa: F401  # fixtures
from tests.backend.event_streams import listen, web_server  # noqa: F401  # fixtures

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
CAPACITY = 8


class MakeSpec(Protocol):
    def __call__(self, *, devices: int = 3, **changes: Any) -> JobSpec: ...


class MakeJob(Protocol):
    def __call__(
        self, *, devices: int = 3, user: User | None = None, at: datetime | None = None, **changes: Any
    ) -> Job: ...


class MakeCheckpoint(Protocol):
    def __call__(self, job: Job, *, step: int, attempt: int = 1) -> Checkpoint: ...


class MakeKey(Protocol):
    def __call__(self, user: User, *, scopes: tuple[str, ...] = ..., expires_in: timedelta | None = None) -> str: ...


@dataclass(slots=True)
class Api:
    """A client with one API key. Responses are those of Django's test client."""

    key: str | None = None
    client: Client = field(default_factory=lambda: Client(raise_request_exception=False))

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(f"/api/v1{path}", query, headers=self._headers())

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        """`key` is the Idempotency-Key. A body of bytes is sent unchanged."""
        if key is not None:
            headers["Idempotency-Key"] = key
        content_type = headers.pop("content_type", "application/json")
        sent = {} if body is None else {"data": body, "content_type": content_type}
        return self.client.post(f"/api/v1{path}", headers=self._headers() | headers, **sent)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        sent = {"data": body, "content_type": "application/json"} if body is not None else {}
        return getattr(self.client, method.lower())(f"/api/v1{path}", headers=self._headers(), **sent)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outbox rows are written, but no worker is notified."""
    monkeypatch.setattr("backend.jobs.outbox.publish_soon", lambda ids, subject: None)


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(name="Ants")


@pytest.fixture
def other_team(db: None) -> Team:
    return Team.objects.create(name="Bees")


def _member(email: str, team: Team, role: Role) -> User:
    user = User.objects.create_user(email)
    Membership.objects.create(user=user, team=team, role=role)
    return user


@pytest.fixture
def alice(team: Team) -> User:
    return _member("alice@example.org", team, Role.OWNER)


@pytest.fixture
def adam(team: Team) -> User:
    """The admin of the team."""
    return _member("adam@example.org", team, Role.ADMIN)


@pytest.fixture
def bob(team: Team) -> User:
    return _member("bob@example.org", team, Role.MEMBER)


@pytest.fixture
def vera(team: Team) -> User:
    """The viewer of the team."""
    return _member("vera@example.org", team, Role.VIEWER)


@pytest.fixture
def charlie(other_team: Team) -> User:
    """The owner of another team."""
    return _member("charlie@example.org", other_team, Role.OWNER)


@pytest.fixture
def project(team: Team) -> Project:
    return Project.objects.create(team=team, name="First steps")


@pytest.fixture
def other_project(other_team: Team) -> Project:
    return Project.objects.create(team=other_team, name="Hive")


@pytest.fixture
def pool(team: Team, other_team: Team) -> ResourcePool:
    pool = ResourcePool.objects.create(name="small", flavor="cpu", capacity=CAPACITY)
    TeamQuota.objects.create(pool=pool, team=team, nominal=CAPACITY)
    TeamQuota.objects.create(pool=pool, team=other_team, nominal=0)  # may borrow, preemptible, whatever is free
    return pool


@pytest.fixture
def make_spec() -> MakeSpec:
    def make(*, devices: int = 3, **changes: Any) -> JobSpec:
        assert devices >= 2, "one for the trainer, one for each replica"
        return JobSpec.model_validate({"name": "Sums", "rollout": {"replicas": devices - 1}} | changes)

    return make


@pytest.fixture
def make_job(team: Team, project: Project, pool: ResourcePool, alice: User, make_spec: MakeSpec) -> MakeJob:
    """A queued job of alice's team."""

    def make(*, devices: int = 3, user: User | None = None, at: datetime | None = None, **changes: Any) -> Job:
        user = user or alice
        return submit_job(
            team=team,
            project=project,
            by=Submitter(user=user, key=None),
            spec=make_spec(devices=devices, **changes),
            pool=pool,
            now=at or NOW,
        )

    return make


def given_asset(team: Team | None, kind: str, name: str, *, version: int = 1, config: Any = None) -> Asset:
    """An asset that an operator registered, for the team or for all; a launched job would read its files."""
    return Asset.objects.create(
        team=team, kind=kind, name=name, version=version, state=AssetState.READY, origin=AssetOrigin.FOLDER, place=name,
        num_bytes=1, num_files=1, num_parts=1,
        sha256="a" * 64, config=config, created_at=NOW, created_by="operator", ready_at=NOW,
    )  # fmt: skip


def with_spec_of_before(job: Job, **changes: Any) -> None:
    """As another release stored it; a trigger prevents this one from changing it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a table with deferred checks cannot be altered
        cursor.execute("ALTER TABLE jobs_job DISABLE TRIGGER laminar_guard_job")
        Job.objects.filter(pk=job.pk).update(spec=job.spec | changes)
        cursor.execute("ALTER TABLE jobs_job ENABLE TRIGGER laminar_guard_job")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    job.refresh_from_db()


@pytest.fixture
def job(make_job: MakeJob) -> Job:
    return make_job()


@pytest.fixture
def other_job(job: Job, other_team: Team, other_project: Project, charlie: User) -> Job:
    """A copy of `job` in another team."""
    same = ("spec", "devices", "min_devices", "max_runtime_s", "steps", "created_at", "queued_at")
    fields = {name: getattr(job, name) for name in same}
    return Job.objects.create(
        team=other_team, project=other_project, pool=job.pool, created_by=charlie, name="theirs", **fields
    )


@pytest.fixture
def attempt(job: Job, pool: ResourcePool) -> JobAttempt:
    """The first attempt of `job`, which is `starting`."""
    assert schedule_pool(pool.pk, now=NOW) == 1
    job.refresh_from_db()
    return job.attempts.get()


@pytest.fixture
def make_checkpoint(db: None) -> MakeCheckpoint:
    """As the engine reported it."""

    def make(job: Job, *, step: int, attempt: int = 1) -> Checkpoint:
        return Checkpoint.objects.create(
            job=job,
            attempt=attempt,
            step=step,
            version=step,
            uri=f"file:///store/{attempt}-{step}",
            manifest_sha256="a" * 64,
            num_bytes=1,
            created_at=NOW,
        )

    return make


@pytest.fixture
def make_key(db: None) -> MakeKey:
    def make(user: User, *, scopes: tuple[str, ...] = tuple(SCOPES), expires_in: timedelta | None = None) -> str:
        expires_at = datetime.now(UTC) + expires_in if expires_in is not None else None
        team = user.memberships.get().team
        return create_api_key(team=team, created_by=user, name="test", scopes=scopes, expires_at=expires_at)[1]

    return make


@pytest.fixture
def api(alice: User, make_key: MakeKey) -> Api:
    """A client with alice's key, with every scope."""
    return Api(make_key(alice))


@pytest.fixture
def api_of(make_key: MakeKey) -> Callable[[User], Api]:
    return lambda user: Api(make_key(user))


@pytest.fixture
def anonymous() -> Api:
    return Api()


@pytest.fixture
def key_row() -> Callable[[str], ApiKey]:
    return lambda text: ApiKey.objects.get(prefix=text[:17])


@pytest.fixture
def in_own_connection() -> Callable[..., Any]:
    """For threads: closes the function's connection, or the test database could not be dropped."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            try:
                return function(*args)
            finally:
                connection.close()

        return run

    return wrap
