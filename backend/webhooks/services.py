"""Changes that a team makes to its webhooks. Each is in the audit log; secrets never are."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from backend.accounts.models import Team
from backend.api.etags import etag_of, refuse_if_changed
from backend.audit.services import record_action
from backend.errors import Conflict, FieldError, Invalid
from backend.ids import new_id
from backend.webhooks.addresses import ForbiddenAddress, checked_url
from backend.webhooks.fan_out import message
from backend.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from backend.webhooks.secret_box import new_secret, seal
from backend.webhooks.selectors import the_delivery, the_endpoint

MOST_PER_TEAM = 20
BOTH_SECRETS_FOR = timedelta(hours=24)
KEPT_FOR = timedelta(days=30)
TEST_TYPE = "webhook.test"
BY_ITS_TEAM = "By its team."


class TooManyWebhooks(Conflict):
    """Your team has 20 webhooks, the maximum. Delete one first."""

    code = "too_many_webhooks"


def create_endpoint(
    team: Team, *, url: str, events: Sequence[str], description: str, actor: str, now: datetime
) -> tuple[WebhookEndpoint, str]:
    """Returns the endpoint and its secret, which is not shown again."""
    _refuse_url(url)
    with transaction.atomic():
        Team.objects.select_for_update(no_key=True).get(pk=team.pk)  # two requests cannot exceed the limit together
        if WebhookEndpoint.objects.filter(team=team).count() >= MOST_PER_TEAM:
            raise TooManyWebhooks
        secret = new_secret()
        endpoint = WebhookEndpoint.objects.create(
            team=team, url=url, events=_distinct(events), description=description, secret=seal(secret), created_at=now
        )
        _record(endpoint, "webhook.created", actor=actor, now=now, url=url)
    return endpoint, secret


def change_endpoint(
    team: Team,
    endpoint_id: str,
    *,
    url: str | None,
    events: Sequence[str] | None,
    description: str | None,
    enabled: bool | None,
    if_match: str | None,
    actor: str,
    now: datetime,
) -> WebhookEndpoint:
    """Changes an endpoint; fields that are None stay as they are."""
    if url is not None:
        _refuse_url(url)
    with transaction.atomic():
        endpoint = _locked(team, endpoint_id, if_match)
        given = {"url": url, "description": description, "events": None if events is None else _distinct(events)}
        changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        if enabled is not None and enabled != (endpoint.disabled_at is None):
            changes |= {"disabled_at": None if enabled else now, "disabled_reason": "" if enabled else BY_ITS_TEAM}
            changes |= {"num_failures": 0, "not_before": None}
        for name, value in changes.items():
            setattr(endpoint, name, value)
        endpoint.version += 1
        endpoint.save()
        _record(endpoint, "webhook.changed", actor=actor, now=now, changed=sorted(changes))
    return endpoint


def delete_endpoint(team: Team, endpoint_id: str, *, if_match: str | None, actor: str, now: datetime) -> None:
    with transaction.atomic():
        endpoint = _locked(team, endpoint_id, if_match)
        _record(endpoint, "webhook.deleted", actor=actor, now=now, url=endpoint.url)
        endpoint.delete()


def rotate_secret(team: Team, endpoint_id: str, *, actor: str, now: datetime) -> tuple[WebhookEndpoint, str]:
    """The old secret keeps signing for a day, next to the new one, so that the receiver can switch."""
    with transaction.atomic():
        endpoint = _locked(team, endpoint_id, None)
        secret = new_secret()
        endpoint.previous_secret, endpoint.previous_until = endpoint.secret, now + BOTH_SECRETS_FOR
        endpoint.secret, endpoint.version = seal(secret), endpoint.version + 1
        endpoint.save()
        _record(endpoint, "webhook.secret_rotated", actor=actor, now=now)
    return endpoint, secret


def send_test(team: Team, endpoint_id: str, *, actor: str, now: datetime) -> WebhookDelivery:
    with transaction.atomic():
        endpoint = _locked(team, endpoint_id, None)
        _resume(endpoint)
        return WebhookDelivery.objects.create(
            endpoint=endpoint,
            message_id=new_id("evt"),
            type=TEST_TYPE,
            body=message(TEST_TYPE, at=now, data={"webhook_id": endpoint.pk}),
            due_at=now,
            created_at=now,
        )


def redeliver(team: Team, endpoint_id: str, delivery_id: str, *, actor: str, now: datetime) -> WebhookDelivery:
    """Sends the same message again, with the same webhook-id and a fresh set of attempts."""
    with transaction.atomic():
        endpoint = _locked(team, endpoint_id, None)
        _resume(endpoint)
        the_delivery(endpoint, delivery_id)
        row = WebhookDelivery.objects.select_for_update(of=("self",)).get(pk=delivery_id)
        row.state, row.due_at, row.finished_at, row.num_attempts = DeliveryState.PENDING, now, None, 0
        row.save(update_fields=["state", "due_at", "finished_at", "num_attempts"])
        _record(endpoint, "webhook.redelivered", actor=actor, now=now, delivery=row.pk)
    return row


def forget_old_deliveries(*, now: datetime) -> int:
    return WebhookDelivery.objects.filter(finished_at__lt=now - KEPT_FOR).delete()[0]


class Disabled(Conflict):
    """This webhook is disabled. Enable it first."""

    code = "webhook_disabled"


def _resume(endpoint: WebhookEndpoint) -> None:
    """A request for a message implies that the receiver works again: ends the pause after failures."""
    if endpoint.disabled_at is not None:
        raise Disabled
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(not_before=None)


def _locked(team: Team, endpoint_id: str, if_match: str | None) -> WebhookEndpoint:
    the_endpoint(team, endpoint_id)
    endpoint = WebhookEndpoint.objects.select_for_update().filter(pk=endpoint_id).first()
    if endpoint is None:  # deleted since the check
        return the_endpoint(team, endpoint_id)
    refuse_if_changed(if_match, etag_of(endpoint.version))
    return endpoint


def _refuse_url(url: str) -> None:
    try:
        checked_url(url, allow_loopback=settings.ENVIRONMENT.webhooks_to_loopback)
    except ForbiddenAddress as refusal:
        place = FieldError(pointer="/url", code="forbidden_address", message=str(refusal))
        raise Invalid("This URL is not allowed for webhooks.", errors=[place]) from None


def _distinct(events: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(events))


def _record(endpoint: WebhookEndpoint, action: str, *, actor: str, now: datetime, **data: object) -> None:
    record_action(team_id=endpoint.team_id, actor=actor, action=action, target=endpoint.pk, now=now, data=data)
