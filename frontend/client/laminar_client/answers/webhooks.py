"""Webhooks and their deliveries."""

from dataclasses import field
from datetime import datetime

from .record import Answer, record


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
    """The only response with the signing secret; `repr` does not show it."""

    secret: str = field(repr=False)


@record
class DeliveryAttempt(Answer):
    """`status` is None if there was no response."""

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
