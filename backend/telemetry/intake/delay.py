"""The delay from a fact's own time until it was stored: measured in this process, exported by /metrics.

It compares the clocks of the engine's host and of Postgres; a host whose clock is ahead appears to have no delay.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from prometheus_client import Histogram

from backend.api.request_times import registry
from engine.spec.facts import Fact

_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0)
_LONGEST_S = 31 * 86_400.0  # beyond it a host's clock is wrong
_seconds = Histogram(
    "laminar_ingest_delay_seconds",
    "From a fact's own time until it was stored, for the oldest fact of each batch.",
    buckets=_BUCKETS,
    registry=registry,
)


def note_delay(facts: Sequence[Fact], *, now: datetime) -> None:
    at = facts[0].at if facts[0].at.tzinfo else facts[0].at.replace(tzinfo=UTC)
    _seconds.observe(min(max(0.0, (now - at).total_seconds()), _LONGEST_S))
