"""Reports of replicas as an engine sends them: every few seconds, and for many replicas some at a time."""

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction

from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job
from backend.telemetry.replicas.activity import DOINGS, store_activity
from engine.spec.facts import ReplicasObserved

EVERY_S: Final = 10
AT_A_TIME: Final = 64
SHARES: Final = (0.55, 0.1, 0.1, 0.05, 0.0, 0.2)
"""Seconds of ten, in the order of the activities."""


def told_by_replicas(job: Job, num: int, *, since: datetime, until: datetime, version: int = 31) -> None:
    at, turn = since + timedelta(seconds=EVERY_S), 0
    while at <= until:
        told = [(turn + each) % num for each in range(min(num, AT_A_TIME))]
        states = [_state(each, at, version) for each in told]
        body = ReplicasObserved.model_validate({"replicas": states, "num_replicas": num})
        with transaction.atomic():
            store_activity(locked_job(job.pk), 1, body, at=at)
        at, turn = at + timedelta(seconds=EVERY_S), turn + len(told)


def _state(replica: int, at: datetime, version: int) -> dict[str, Any]:
    """Always writing, or alternating; the second replica idles every other time."""
    is_idle = replica == 1 and int(at.timestamp()) // EVERY_S % 2 == 0
    shares = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0) if is_idle else SHARES
    start, spans = -float(EVERY_S), []
    for doing, share in zip(DOINGS, shares, strict=True):
        if share:
            spans.append({"doing": doing, "start_s": round(start, 3), "end_s": round(start + EVERY_S * share, 3)})
        start += EVERY_S * share
    return {
        "replica": replica, "incarnation": int(replica == 1), "version": version, "kv_used": 0.4, "num_running": 12,
        "num_waiting": replica % 2, "num_with_environment": 0, "num_prefilled": 9_000, "num_decoded": 90_000,
        "spans": spans,
    }  # fmt: skip
