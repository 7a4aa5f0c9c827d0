"""Sends due messages: one sender at a time, many messages in parallel, none blocked by another's receiver.

    claim (moves due_at ahead) ──▶ carry, up to 64 at once ──▶ settle (delivered, due again later, dead)

Invariants:
- one sender runs at a time (`SenderLease`), so that receivers, however many and slow, occupy one worker. It claims
  nothing new after `TAKES_ON_FOR_S`, and no attempt outlasts `LONGEST_TRY_S`: together below the task's time limit;
- at most `AT_ONCE_TO_ONE` messages per endpoint are in flight, and a failing endpoint pauses (`not_before`): a dead
  receiver delays no other endpoint;
- a claim that was never settled (the sender died) is due again later: at-least-once, always with the same webhook-id.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import F, Q

from backend.clock import Clock
from backend.webhooks.models import DeliveryState, SenderLease, WebhookDelivery, WebhookEndpoint
from backend.webhooks.secret_box import unseal
from backend.webhooks.settling import settle
from backend.webhooks.transport import MOST_AT_ONCE, Courier, Message, Outcome

TAKES_ON_FOR_S = 8.0
LEASE_LASTS = timedelta(seconds=60)  # longer than any sender runs; then a dead sender's lease expires
CLAIM_LASTS = timedelta(seconds=60)
AT_ONCE_TO_ONE = 2
_SLOT = 1

_DUE = """
SELECT id FROM (
    SELECT delivery.id, delivery.due_at,
           row_number() OVER (PARTITION BY delivery.endpoint_id ORDER BY delivery.due_at, delivery.id) AS place
    FROM webhooks_webhookdelivery delivery
    JOIN webhooks_webhookendpoint endpoint ON endpoint.id = delivery.endpoint_id
    WHERE delivery.state = 'pending' AND delivery.due_at <= %(now)s AND endpoint.disabled_at IS NULL
      AND (endpoint.not_before IS NULL OR endpoint.not_before <= %(now)s)
      AND NOT endpoint.id = ANY(%(busy)s)
) due WHERE place <= %(each)s ORDER BY due_at, id LIMIT %(room)s
"""


def send_due(courier: Courier, *, clock: Clock) -> int:
    """Returns the number of attempts made; 0 if another sender runs."""
    started = clock()
    if not _take_lease(started):
        return 0
    try:
        with asyncio.Runner() as runner:
            return _send(courier, runner, clock=clock, until=started + timedelta(seconds=TAKES_ON_FOR_S))
    finally:
        SenderLease.objects.filter(slot=_SLOT).update(held_until=clock())


def _send(courier: Courier, runner: "asyncio.Runner", *, clock: Clock, until: datetime) -> int:
    under_way: dict[asyncio.Task[Outcome], Message] = {}
    tries = 0
    while True:
        now = clock()
        busy = [message.endpoint_id for message in under_way.values()]
        room = MOST_AT_ONCE - len(under_way) if now < until else 0
        for message in claim(now=now, room=room, busy=busy):
            under_way[_start(courier, message, runner, at=now)] = message
            tries += 1
        if not under_way:
            return tries
        for task in runner.run(_first_of(list(under_way))):
            settle(under_way.pop(task).delivery_id, task.result(), now=clock())


def _start(courier: Courier, message: Message, runner: "asyncio.Runner", *, at: datetime) -> "asyncio.Task[Outcome]":
    return runner.get_loop().create_task(courier.carry(message, at=at), name=message.delivery_id)


async def _first_of(tasks: Sequence["asyncio.Task[Outcome]"]) -> "set[asyncio.Task[Outcome]]":
    """Returns the finished tasks; waits at most 1 s for the first."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=1.0)
    return done


def claim(*, now: datetime, room: int, busy: Sequence[str] = ()) -> list[Message]:
    """Claims up to `room` due deliveries, skipping `busy` endpoints."""
    if room <= 0:
        return []
    with transaction.atomic(), connection.cursor() as db:
        db.execute(_DUE, {"now": now, "busy": list(busy), "each": AT_ONCE_TO_ONE, "room": room})
        due_ids = [row[0] for row in db.fetchall()]
        due = WebhookDelivery.objects.filter(pk__in=due_ids, state=DeliveryState.PENDING, due_at__lte=now)
        claimed = list(due.select_for_update(skip_locked=True, of=("self",)).select_related("endpoint"))
        WebhookDelivery.objects.filter(pk__in=[row.pk for row in claimed]).update(
            due_at=now + CLAIM_LASTS, num_attempts=F("num_attempts") + 1
        )
    return [_message(row, now=now) for row in claimed]


def _message(row: WebhookDelivery, *, now: datetime) -> Message:
    return Message(
        delivery_id=row.pk,
        endpoint_id=row.endpoint_id,
        url=row.endpoint.url,
        message_id=row.message_id,
        body=row.body,
        secrets_in_use=[unseal(sealed) for sealed in _sealed(row.endpoint, now=now)],
    )


def _sealed(endpoint: WebhookEndpoint, *, now: datetime) -> list[str]:
    is_rotating = endpoint.previous_until is not None and endpoint.previous_until > now
    return [endpoint.secret] + ([endpoint.previous_secret] if is_rotating and endpoint.previous_secret else [])


def _take_lease(now: datetime) -> bool:
    SenderLease.objects.get_or_create(slot=_SLOT, defaults={"held_until": now})
    free = SenderLease.objects.filter(Q(held_until__lte=now), slot=_SLOT)
    return free.update(held_until=now + LEASE_LASTS) == 1
