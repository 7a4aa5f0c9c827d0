"""Webhooks and their deliveries. The key needs the scope webhooks:write."""

from collections.abc import Sequence
from typing import Any

from ..answers.webhooks import Delivery, DeliveryWithBody, NewWebhook, Webhook
from ..wire import Procedure, Stream, delete, get, patch, post
from .pages import answer, each_of, nothing


def each(*, most: int | None = None) -> Stream[Webhook]:
    return each_of(Webhook, "webhooks", query={}, most=most)


def show(webhook_id: str) -> Procedure[Webhook]:
    return (yield from answer(Webhook, get("webhooks", webhook_id)))


def make(url: str, *, events: Sequence[str] = ("*",), description: str = "") -> Procedure[NewWebhook]:
    """`events`: such as job.succeeded, job.* or *. The only response with the signing secret, until the secret is
    rotated."""
    body = {"url": url, "events": list(events), "description": description}
    return (yield from answer(NewWebhook, post("webhooks", body=body)))


def change(
    webhook_id: str,
    *,
    url: str | None = None,
    events: Sequence[str] | None = None,
    description: str | None = None,
    enabled: bool | None = None,
    if_match: str | None = None,
) -> Procedure[Webhook]:
    """Omitted values stay unchanged."""
    wishes: dict[str, Any] = {
        "url": url,
        "events": None if events is None else list(events),
        "description": description,
        "enabled": enabled,
    }
    body = {name: value for name, value in wishes.items() if value is not None}
    return (yield from answer(Webhook, patch("webhooks", webhook_id, body=body, if_match=if_match)))


def remove(webhook_id: str) -> Procedure[None]:
    """Its deliveries are deleted, too."""
    return (yield from nothing(delete("webhooks", webhook_id)))


def rotate_secret(webhook_id: str) -> Procedure[NewWebhook]:
    """Messages are signed with both the previous and the new secret for a day."""
    return (yield from answer(NewWebhook, post("webhooks", webhook_id, "rotate-secret")))


def send_test(webhook_id: str) -> Procedure[Delivery]:
    """Sends a message of the type webhook.test."""
    return (yield from answer(Delivery, post("webhooks", webhook_id, "test")))


def deliveries(webhook_id: str, *, state: str | None = None, most: int | None = None) -> Stream[Delivery]:
    """Newest first. `state`: pending, delivered or dead."""
    return each_of(Delivery, "webhooks", webhook_id, "deliveries", query={"state": state}, most=most)


def delivery(webhook_id: str, delivery_id: str) -> Procedure[DeliveryWithBody]:
    """Includes the message's exact bytes."""
    return (yield from answer(DeliveryWithBody, get("webhooks", webhook_id, "deliveries", delivery_id)))


def redeliver(webhook_id: str, delivery_id: str) -> Procedure[Delivery]:
    return (yield from answer(Delivery, post("webhooks", webhook_id, "deliveries", delivery_id, "redeliver")))
