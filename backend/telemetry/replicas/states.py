"""The state of each replica (cache, trajectories, tokens) as it reported it, stored next to its spans.

Invariants:
- in a very large job a fact covers only some replicas, in turns: an answer gives the number known and the number of
  replicas;
- states are kept as long as spans, and reading costs a bounded number of facts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Sum

from backend.jobs.models import Job
from backend.telemetry.compression import compress, decompress
from backend.telemetry.models import ReplicaActivity
from engine.spec.facts import ReplicasObserved

MOST_STATES: Final = 5_000
MOST_FACTS: Final = 64
"""Facts read for the newest states: a full turn of 4,096 replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaHeld:
    attempt: int
    replica: int
    incarnation: int
    version: int
    at: datetime
    kv_used: float
    num_running: int
    num_waiting: int
    num_with_environment: int
    num_prefilled: int
    """Tokens since this incarnation began, as is `num_decoded`."""
    num_decoded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasHeld:
    """The newest known state of each replica."""

    num_replicas: int
    """Replicas of the job; 0: not reported."""
    replicas: Sequence[ReplicaHeld]


def states_of(observed: ReplicasObserved, at: datetime) -> bytes:
    """The states for a row of activity."""
    rows = [
        [
            each.replica,
            each.incarnation,
            each.version,
            round(each.kv_used, 4),
            each.num_running,
            each.num_waiting,
            each.num_with_environment,
            each.num_prefilled,
            each.num_decoded,
        ]
        for each in observed.replicas
    ]
    return compress(json.dumps([at.timestamp(), rows], separators=(",", ":")).encode())


def replicas_held(job: Job) -> ReplicasHeld:
    """States of the newest attempt that reported any."""
    facts = ReplicaActivity.objects.filter(job=job, states__isnull=False).order_by("-until", "-id")
    newest: dict[int, ReplicaHeld] = {}
    attempt = num_replicas = 0
    for fact in facts[:MOST_FACTS].iterator(chunk_size=8):
        if not newest:
            attempt, num_replicas = fact.attempt, fact.num_replicas
        if fact.attempt != attempt:
            break
        for each in _read(fact):
            newest.setdefault(each.replica, each)
        if len(newest) >= num_replicas:
            break
    return ReplicasHeld(num_replicas=num_replicas, replicas=[newest[key] for key in sorted(newest)])


def states_between(job: Job, since: datetime, until: datetime) -> Sequence[ReplicaHeld] | None:
    """Reported in [since, until), oldest first. None if there are more than `MOST_STATES`."""
    facts = ReplicaActivity.objects.filter(job=job, states__isnull=False, until__gte=since, until__lt=until)
    if (facts.aggregate(total=Sum("num_states"))["total"] or 0) > MOST_STATES:
        return None
    return [each for fact in facts.order_by("until", "id") for each in _read(fact)]


def _read(fact: ReplicaActivity) -> Iterator[ReplicaHeld]:
    assert fact.states is not None
    moment, rows = json.loads(decompress(fact.states))
    at = datetime.fromtimestamp(moment, UTC)
    names: Any = ReplicaHeld.__dataclass_fields__
    stored = [name for name in names if name not in {"attempt", "at"}]
    for row in rows:
        yield ReplicaHeld(attempt=fact.attempt, at=at, **dict(zip(stored, row, strict=True)))
