"""Turns events into deliveries.

Invariants:
- a pending event is deleted in the transaction that writes its deliveries: each endpoint subscribed at that moment gets
  exactly one, however many workers run concurrently;
- the body is rendered once and stored, so that every attempt sends and signs the same bytes.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from django.db import transaction

from backend.jobs.models import JobEvent
from backend.jobs.rest.representations import represent_event
from backend.webhooks.models import PendingEvent, WebhookDelivery, WebhookEndpoint

AT_ONCE = 200


def fan_out(*, now: datetime) -> int:
    """Returns the number of events processed; call again while it equals `AT_ONCE`."""
    with transaction.atomic():
        pending = PendingEvent.objects.select_for_update(skip_locked=True, of=("self",)).order_by("event_id")
        claimed = list(pending.values_list("event_id", flat=True)[:AT_ONCE])
        events = list(JobEvent.objects.filter(pk__in=claimed).select_related("job").order_by("pk"))
        listening = _listening({event.job.team_id for event in events})
        deliveries = [
            _delivery(endpoint, event, now=now)
            for event in events
            for endpoint in listening[event.job.team_id]
            if listens(endpoint.events, type_of(event))
        ]
        WebhookDelivery.objects.bulk_create(deliveries, ignore_conflicts=True)
        PendingEvent.objects.filter(pk__in=claimed).delete()
    return len(claimed)


def type_of(event: JobEvent) -> str:
    """job.queued, job.running, job.succeeded … for a change of state, otherwise the event's own type."""
    return f"job.{event.to_state if event.type == 'state_changed' else event.type}"


def listens(wanted: Sequence[str], event_type: str) -> bool:
    return any(name in {"*", "job.*", event_type} for name in wanted)


def message(event_type: str, *, at: datetime, data: Mapping[str, object]) -> str:
    """A message in the format of Standard Webhooks."""
    return json.dumps({"type": event_type, "timestamp": at.isoformat(), "data": data}, separators=(",", ":"))


def _listening(team_ids: set[str]) -> dict[str, list[WebhookEndpoint]]:
    endpoints: dict[str, list[WebhookEndpoint]] = defaultdict(list)
    for endpoint in WebhookEndpoint.objects.filter(team_id__in=team_ids, disabled_at__isnull=True):
        endpoints[endpoint.team_id].append(endpoint)
    return endpoints


def _delivery(endpoint: WebhookEndpoint, event: JobEvent, *, now: datetime) -> WebhookDelivery:
    data = {
        "job_id": event.job_id,
        "project_id": event.job.project_id,
        "event": represent_event(event).model_dump(mode="json"),
    }
    return WebhookDelivery(
        endpoint=endpoint,
        event=event,
        message_id=f"evt_{event.job_id.removeprefix('job_')}_{event.seq}",
        type=type_of(event),
        body=message(type_of(event), at=event.at, data=data),
        due_at=now,
        created_at=now,
    )
