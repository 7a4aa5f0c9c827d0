"""A team's decayed use of a pool: the tie-breaker of fair share.

    U(now) = U(then) * 2^(-(now - then) / half-life) + the decayed device-seconds held since

Invariants:
- it is derived from reservations, so a late or repeated round changes nothing;
- it affects the order only, never bills.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import connection

from backend.pools.models import ResourcePool, UsageDecay

HALF_LIFE = timedelta(days=1)
WRITTEN_EVERY = timedelta(seconds=10)

# The integral of a decaying second is (2^-x(end) - 2^-x(start)) * half-life / ln 2. Postgres raises an error for a
# power that is too small, hence the 500.
_HELD_SINCE = """
WITH held AS (
    SELECT r.team_id, r.devices,
           EXTRACT(EPOCH FROM %(now)s - LEAST(COALESCE(r.released_at, %(now)s), %(now)s)) AS ended_ago,
           EXTRACT(EPOCH FROM %(now)s - GREATEST(r.created_at, COALESCE(d.as_of, r.created_at))) AS began_ago
    FROM pools_reservation r LEFT JOIN pools_usagedecay d ON d.pool_id = r.pool_id AND d.team_id = r.team_id
    WHERE r.pool_id = %(pool)s AND r.created_at < %(now)s AND (r.released_at IS NULL OR r.released_at > %(since)s)
)
SELECT team_id, SUM(devices * %(half)s / ln(2)
    * (power(2, -LEAST(500, ended_ago / %(half)s)) - power(2, -LEAST(500, began_ago / %(half)s))))
FROM held WHERE began_ago > ended_ago GROUP BY team_id
"""
_OLDEST = timedelta(days=30)  # after which a billionth is left


def histories_of(pool: ResourcePool, *, now: datetime) -> dict[str, float]:
    """By team id, without teams that never held devices."""
    histories = {row.team_id: _decay(row, now) for row in UsageDecay.objects.filter(pool=pool)}
    oldest = UsageDecay.objects.filter(pool=pool).order_by("as_of").values_list("as_of", flat=True).first()
    since = max(oldest or now - _OLDEST, now - _OLDEST)
    with connection.cursor() as db:
        half = HALF_LIFE.total_seconds()
        db.execute(_HELD_SINCE, {"pool": pool.pk, "now": now, "since": since, "half": half})
        for team_id, more in db.fetchall():
            histories[team_id] = histories.get(team_id, 0.0) + max(0.0, float(more))
    return histories


def are_stale(pool: ResourcePool, *, now: datetime) -> bool:
    newest = UsageDecay.objects.filter(pool=pool).order_by("-as_of").values_list("as_of", flat=True).first()
    return newest is None or newest <= now - WRITTEN_EVERY


def write_histories(pool: ResourcePool, histories: Mapping[str, float], *, now: datetime) -> None:
    UsageDecay.objects.bulk_create(
        [UsageDecay(pool=pool, team_id=team, gpu_seconds=value, as_of=now) for team, value in histories.items()],
        update_conflicts=True,
        unique_fields=["pool", "team"],
        update_fields=["gpu_seconds", "as_of"],
    )


def _decay(row: UsageDecay, now: datetime) -> float:
    age = max(timedelta(0), now - row.as_of)
    return float(row.gpu_seconds * 2.0 ** -(age / HALF_LIFE))
