"""The time since which drivers could reach the site without a break. A driver's silence never counts for longer.

    every round ──▶ is a driver silent or stuck? ──no──▶ reachable
                              └──yes──▶ does our own address answer, as drivers call it? ──▶ reachable, or a break

Invariants:
- a break is an unanswered call, or a time without a round: a reconciler, worker or database that was frozen or down, or
  a machine that slept. A break resets every count of seconds against a driver;
- it is stored in the lease's row, written only by the lease's holder, by the same clock as the row's other times.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
from django.conf import settings
from django.db.models import Q

from backend.jobs.models import HOLDING_STATES, JobAttempt, ReconcileLease
from backend.reconcile.judging import SILENCE_S, TURNING_STATES
from backend.reconcile.lease import NAME

log = logging.getLogger(__name__)

BREAK = timedelta(seconds=30)  # ten rounds; the lease of a frozen reconciler lasts as long
ANSWERS_WITHIN_S = 5.0

Probe = Callable[[], bool]


def listening_since(now: datetime, probe: Probe) -> datetime:
    """Call under the lease."""
    row = ReconcileLease.objects.get(name=NAME)
    is_unbroken = row.listened_at is not None and timedelta() <= now - row.listened_at <= BREAK
    if not is_unbroken or (_is_a_driver_silent(now) and not probe()):
        row.listening_since = now
    row.listened_at = now
    row.save(update_fields=["listening_since", "listened_at"])
    assert row.listening_since is not None
    return row.listening_since


def site_is_reachable() -> bool:
    """Uses the drivers' own address; a proxy in front answers 5xx if the web server is down."""
    url = f"{settings.ENVIRONMENT.control_url}/healthz"
    try:
        answer = httpx.get(url, timeout=ANSWERS_WITHIN_S, trust_env=False)
    except httpx.HTTPError as error:
        log.warning("our own address does not respond, ignoring silent drivers: %s", type(error).__name__)
        return False
    return not answer.is_server_error


def _is_a_driver_silent(now: datetime) -> bool:
    """True if a driver sends no heartbeat, or its loop is stuck."""
    limit = now - timedelta(seconds=SILENCE_S)
    is_still = Q(moved_at__lt=limit, job__state__in=TURNING_STATES)
    is_silent = Q(last_seen_at__lt=limit) | Q(last_seen_at=None, submitted_at__lt=limit)
    live = JobAttempt.objects.filter(ended_at=None, job__state__in=HOLDING_STATES)
    return live.filter(is_still | is_silent).exists()
