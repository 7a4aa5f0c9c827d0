"""A team's webhooks and their deliveries.

Invariant: an object of another team is answered exactly like one that does not exist.
"""

import re

from django.db.models import QuerySet

from backend.accounts.models import Team
from backend.errors import NotFound
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint

_ENDPOINT_ID = re.compile(r"whk_[0-9a-z]{20}", re.ASCII)
_DELIVERY_ID = re.compile(r"whd_[0-9a-z]{20}", re.ASCII)


def endpoints_of(team: Team) -> QuerySet[WebhookEndpoint]:
    """Newest first."""
    return WebhookEndpoint.objects.filter(team=team).order_by("-created_at", "-id")


def the_endpoint(team: Team, endpoint_id: str) -> WebhookEndpoint:
    """Raises `NotFound`."""
    known = _ENDPOINT_ID.fullmatch(endpoint_id)
    endpoint = endpoints_of(team).filter(pk=endpoint_id).first() if known else None
    if endpoint is None:
        raise NotFound("Webhook not found.")
    return endpoint


def deliveries_of(endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    """Newest first."""
    return WebhookDelivery.objects.filter(endpoint=endpoint).order_by("-created_at", "-id")


def the_delivery(endpoint: WebhookEndpoint, delivery_id: str) -> WebhookDelivery:
    """Raises `NotFound`."""
    known = _DELIVERY_ID.fullmatch(delivery_id)
    delivery = deliveries_of(endpoint).filter(pk=delivery_id).first() if known else None
    if delivery is None:
        raise NotFound("Delivery not found.")
    return delivery
