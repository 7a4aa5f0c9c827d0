"""Messages that belong to no job: written at once, in the transaction of their cause."""

from collections.abc import Mapping
from datetime import datetime

from backend.accounts.models import Team
from backend.webhooks.fan_out import message
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint


def announce(team: Team, event_type: str, *, data: Mapping[str, object], message_id: str, now: datetime) -> None:
    """Queues the message for every endpoint subscribed to `*` or to this type."""
    body = message(event_type, at=now, data=data)
    WebhookDelivery.objects.bulk_create(
        WebhookDelivery(
            endpoint=endpoint, message_id=message_id, type=event_type, body=body, due_at=now, created_at=now
        )
        for endpoint in WebhookEndpoint.objects.filter(team=team, disabled_at__isnull=True)
        if {"*", event_type} & set(endpoint.events)
    )
