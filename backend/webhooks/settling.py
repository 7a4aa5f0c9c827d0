"""Settles a delivery after an attempt.

Invariants:
- only 2xx is success; 410 means "never again" and disables the endpoint;
- attempts are spaced at growing intervals over days, with jitter; then the delivery is dead, and can be viewed and sent
  again;
- an attempt that failed because this server was overloaded is repeated like any other, but never counts against the
  endpoint: it neither pauses nor gets disabled;
- an endpoint without a success during the lifetime of a dead delivery is disabled, with the reason.
"""

import random
from datetime import datetime, timedelta

from django.db import transaction

from backend.audit.services import record_action
from backend.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from backend.webhooks.transport import Outcome

_H = 3_600
RETRY_AFTER_S = (5, 60, 300, 1_800, 2 * _H, 5 * _H, 10 * _H, 14 * _H, 20 * _H, 24 * _H)
"""After the last one the delivery is dead: eleven attempts in just over three days, as Standard Webhooks proposes."""
JITTER = 0.2
LONGEST_TROUBLE_S = 600
KEPT_ATTEMPTS = 12


def settle(
    delivery_id: str,
    outcome: Outcome,
    *,
    now: datetime,
    rng: random.Random = random.Random(),  # noqa: B008
) -> None:
    with transaction.atomic():
        row = WebhookDelivery.objects.select_for_update(of=("self",)).get(pk=delivery_id)
        endpoint = WebhookEndpoint.objects.select_for_update().get(pk=row.endpoint_id)
        attempt = {"at": now.isoformat(), "status": outcome.status, "error": outcome.error, "ms": outcome.ms}
        row.attempts = [*row.attempts, attempt][-KEPT_ATTEMPTS:]
        if row.state != DeliveryState.PENDING:  # a duplicate attempt; the other one was settled first
            row.save(update_fields=["attempts"])
            return
        if outcome.is_success:
            _succeeded(row, endpoint, now=now)
        else:
            _failed(row, endpoint, outcome, now=now, rng=rng)
        row.save(update_fields=["attempts", "state", "due_at", "finished_at"])
        endpoint.save(update_fields=["num_failures", "not_before", "last_success_at"])
        if endpoint.disabled_at is None and not (outcome.is_success or outcome.is_ours):
            _disable_if_hopeless(row, endpoint, outcome, now=now)


def _succeeded(row: WebhookDelivery, endpoint: WebhookEndpoint, *, now: datetime) -> None:
    row.state, row.due_at, row.finished_at = DeliveryState.DELIVERED, None, now
    endpoint.num_failures, endpoint.not_before, endpoint.last_success_at = 0, None, now


def _failed(
    row: WebhookDelivery, endpoint: WebhookEndpoint, outcome: Outcome, *, now: datetime, rng: random.Random
) -> None:
    if not outcome.is_ours:
        endpoint.num_failures += 1
        trouble_s = min(2 ** min(endpoint.num_failures, 20), LONGEST_TROUBLE_S)
        endpoint.not_before = now + timedelta(seconds=trouble_s)
    if outcome.is_gone or row.num_attempts > len(RETRY_AFTER_S):
        row.state, row.due_at, row.finished_at = DeliveryState.DEAD, None, now
    else:
        wait_s = RETRY_AFTER_S[row.num_attempts - 1] * rng.uniform(1 - JITTER, 1 + JITTER)
        row.due_at = now + timedelta(seconds=wait_s)


def _disable_if_hopeless(row: WebhookDelivery, endpoint: WebhookEndpoint, outcome: Outcome, *, now: datetime) -> None:
    has_succeeded_since = endpoint.last_success_at is not None and endpoint.last_success_at >= row.created_at
    if outcome.is_gone:
        reason = "The receiver answered 410 Gone."
    elif row.state == DeliveryState.DEAD and not has_succeeded_since:
        reason = "No delivery succeeded for days."
    else:
        return
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(
        disabled_at=now, disabled_reason=reason, version=endpoint.version + 1
    )
    record_action(
        team_id=endpoint.team_id, actor="webhooks", action="webhook.disabled", target=endpoint.pk, now=now,
        data={"reason": reason},
    )  # fmt: skip
