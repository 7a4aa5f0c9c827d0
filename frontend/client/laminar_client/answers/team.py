"""A team's keys, projects and templates, and the identity of the current key."""

from dataclasses import field
from datetime import datetime
from typing import Any

from .record import Answer, Named, record


@record
class KeyInUse(Named):
    prefix: str
    expires_at: datetime | None


@record
class Me(Answer):
    key: KeyInUse
    team: Named
    user: str
    role: str
    scopes: list[str]


@record
class KeyOwner(Named):
    kind: str


@record
class Key(Named):
    prefix: str
    state: str
    owner: KeyOwner
    scopes: list[str]
    project: str | None
    max_devices: int | None
    max_gpu_hours: float | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@record
class NewKey(Key):
    """The only response with the secret; `repr` does not show it."""

    secret: str = field(repr=False)


@record
class Project(Named):
    created_at: datetime


@record
class Template(Answer):
    name: str
    title: str
    about: str
    spec: dict[str, Any]
