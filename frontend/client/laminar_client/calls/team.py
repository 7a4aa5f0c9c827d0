"""A team's projects, keys, templates, pools, quota, budget and usage."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from ..answers.pools import Pool, PoolQuota, Queue
from ..answers.team import Key, Me, NewKey, Project, Template
from ..answers.usage import Budget, Usage
from ..wire import Procedure, Stream, delete, get, post
from .pages import answer, each_of, nothing, whole_list


def me() -> Procedure[Me]:
    """The current key's identity and permissions."""
    return (yield from answer(Me, get("me")))


def projects() -> Procedure[list[Project]]:
    return (yield from whole_list(Project, get("projects")))


def make_project(name: str) -> Procedure[Project]:
    return (yield from answer(Project, post("projects", body={"name": name})))


def templates() -> Procedure[list[Template]]:
    return (yield from whole_list(Template, get("templates")))


def template(name: str) -> Procedure[Template]:
    return (yield from answer(Template, get("templates", name)))


def keys(*, most: int | None = None) -> Stream[Key]:
    return each_of(Key, "api-keys", query={}, most=most)


def make_key(
    name: str,
    *,
    scopes: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    project: str | None = None,
    service_account: str | None = None,
    max_devices: int | None = None,
    max_gpu_hours: float | None = None,
) -> Procedure[NewKey]:
    """The only response with the secret: store it, it cannot be shown again."""
    body: dict[str, Any] = {
        "name": name,
        "scopes": None if scopes is None else list(scopes),
        "expires_at": None if expires_at is None else expires_at.isoformat(),
        "project": project,
        "service_account": service_account,
        "max_devices": max_devices,
        "max_gpu_hours": max_gpu_hours,
    }
    given = {name: value for name, value in body.items() if value is not None}
    return (yield from answer(NewKey, post("api-keys", body=given)))


def revoke_key(key_id: str) -> Procedure[None]:
    """Takes effect at once, also for every key that was created with it."""
    return (yield from nothing(delete("api-keys", key_id)))


def pools() -> Procedure[list[Pool]]:
    return (yield from whole_list(Pool, get("pools")))


def queue(pool_id: str, *, mine: bool = False, limit: int | None = None) -> Procedure[Queue]:
    """The holders of the pool's devices, and the waiting jobs in order."""
    return (yield from answer(Queue, get("pools", pool_id, "queue", query={"mine": mine or None, "limit": limit})))


def quota() -> Procedure[list[PoolQuota]]:
    return (yield from whole_list(PoolQuota, get("quota")))


def budget() -> Procedure[Budget]:
    return (yield from answer(Budget, get("budgets")))


def usage(
    *, group_by: str = "job", first: date | None = None, last: date | None = None, after: str | None = None
) -> Procedure[Usage]:
    """Device-seconds by kind; by default for this month. `group_by`: team, project, user, job, day or key."""
    query = {"group_by": group_by, "from": first, "to": last, "after": after}
    return (yield from answer(Usage, get("usage", query=query)))
