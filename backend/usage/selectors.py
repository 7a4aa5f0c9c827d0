"""The time that a team has used, for budgets and ceilings, from reservations and settled credits only."""

from datetime import date, datetime

from django.db import connection

# Bounded by what the team held since then: uses the index of live reservations and the team's own rows.
_HELD = """
SELECT coalesce(sum(devices * extract(epoch FROM least(coalesce(released_at, %(now)s), %(now)s)
                                                 - greatest(created_at, %(since)s))), 0)
FROM pools_reservation
WHERE team_id = %(team)s AND created_at < %(now)s AND (released_at IS NULL OR released_at > %(since)s)
"""
_CREDITED = """
SELECT coalesce(sum(credited_us), 0) FROM usage_usageslice WHERE team_id = %(team)s AND day >= %(day)s
"""


def gpu_seconds_of(team_id: str, since: datetime, *, now: datetime) -> float:
    """Device-seconds held since then, up to now, minus credits for platform faults since that day. Credits are kept by
    day, so callers that need them exact pass a `since` at midnight UTC."""
    values: dict[str, str | date | datetime] = {"team": team_id, "since": since, "now": now, "day": since.date()}
    with connection.cursor() as db:
        db.execute(_HELD, values)
        (held,) = db.fetchone()
        db.execute(_CREDITED, values)
        (credited_us,) = db.fetchone()
    return max(0.0, float(held) - float(credited_us) / 1e6)
