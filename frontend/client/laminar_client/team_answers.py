"""What the server answers about a team: its people and keys, its audit log, its webhooks."""

from dataclasses import field
from datetime import datetime
from typing import Any

from .answers import Answer, Named, record


@record
class Member(Answer):
    id: str
    email: str
    role: str
    last_sign_in_at: datetime | None


@record
class Invitation(Answer):
    id: str
    email: str
    role: str
    invited_by: str
    created_at: datetime
    expires_at: datetime


@record
class NewInvitation(Invitation):
    """The only answer that holds the link; its representation does not show it."""

    link: str = field(repr=False)
    mailed: bool


@record
class AuditEntry(Answer):
    """`hash` covers all of it and `previous_hash`: a team's entries are one chain."""

    seq: int
    at: datetime
    actor: str
    action: str
    target: str
    data: dict[str, Any]
    request_id: str
    ip: str
    previous_hash: str
    hash: str


@record
class Webhook(Answer):
    id: str
    url: str
    events: list[str]
    description: str
    enabled: bool
    disabled_reason: str
    num_failures: int
    last_success_at: datetime | None
    previous_secret_until: datetime | None
    created_at: datetime


@record
class NewWebhook(Webhook):
    """The only answer that holds the signing secret; its representation does not show it."""

    secret: str = field(repr=False)


@record
class DeliveryAttempt(Answer):
    """`status` is None if no answer came."""

    at: datetime
    status: int | None
    error: str
    ms: int


@record
class Delivery(Answer):
    id: str
    webhook_id: str
    message_id: str
    type: str
    state: str
    num_attempts: int
    next_attempt_at: datetime | None
    attempts: list[DeliveryAttempt]
    created_at: datetime
    finished_at: datetime | None


@record
class DeliveryWithBody(Delivery):
    body: str


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
    """The only answer that holds a secret; its representation does not show it."""

    secret: str = field(repr=False)
