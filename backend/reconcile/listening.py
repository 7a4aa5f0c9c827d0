"""Since when drivers could be heard without a break. Nobody's silence counts for longer than that.

    every round ──▶ somebody is silent, or stands still? ──no──▶ all are heard
                              └──yes──▶ does our own door answer, by the address that drivers know? ──▶ heard, or not

Invariants:
- a break is a door that did not answer, or a time without a round: a reconciler, a worker or a database that was frozen
  or away, a machine that slept. It ends every count of seconds that is held against a driver;
- it is kept in the row of the lease, whose holder alone writes it, by the clock that the row's other times are of.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
from django.conf import settings
from django.db.models import Q

from backend.jobs.models import HOLDING_STATES, JobAttempt, ReconcileLease
from backend.reconcile.lease import NAME
from backend.reconcile.verdicts import SILENCE_S, TURNING_STATES

log = logging.getLogger(__name__)

BREAK = timedelta(seconds=30)  # ten rounds; the lease of one that froze lasts as long
ANSWERS_WITHIN_S = 5.0

Door = Callable[[], bool]


def listening_since(now: datetime, door: Door) -> datetime:
    """Under the lease."""
    row = ReconcileLease.objects.get(name=NAME)
    is_unbroken = row.listened_at is not None and timedelta() <= now - row.listened_at <= BREAK
    if not is_unbroken or (_somebody_is_silent(now) and not door()):
        row.listening_since = now
    row.listened_at = now
    row.save(update_fields=["listening_since", "listened_at"])
    assert row.listening_since is not None
    return row.listening_since


def door_is_open() -> bool:
    """By the drivers' own way; whatever stands before the web server answers 5xx when that is away."""
    url = f"{settings.ENVIRONMENT.control_url}/healthz"
    try:
        answer = httpx.get(url, timeout=ANSWERS_WITHIN_S, trust_env=False)
    except httpx.HTTPError as error:
        log.warning("our own door does not answer, no driver is blamed for its silence: %s", type(error).__name__)
        return False
    return not answer.is_server_error


def _somebody_is_silent(now: datetime) -> bool:
    """Or beats and does not move."""
    heard_at = now - timedelta(seconds=SILENCE_S)
    is_still = Q(moved_at__lt=heard_at, job__state__in=TURNING_STATES)
    is_silent = Q(last_seen_at__lt=heard_at) | Q(last_seen_at=None, submitted_at__lt=heard_at)
    live = JobAttempt.objects.filter(ended_at=None, job__state__in=HOLDING_STATES)
    return live.filter(is_still | is_silent).exists()
