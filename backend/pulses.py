"""Heartbeats of background work: beat's newest tick, and the newest canary that went through every queue.

    beat ──tick, recorded as BEAT──▶ queue ──▶ worker ──done, recorded as CANARY──▶ health checks

Invariants:
- a running process proves nothing: only started or completed work counts;
- times are Postgres', in the table that records every background task.
"""

from typing import Final

BEAT: Final = "beat.tick"
CANARY: Final = "jobs.canary"
EVERY_S: Final = 5.0
LATE_AFTER_S: Final = 30.0  # six beats: a worker that is busy for a moment is not gone
PULSES: Final = {"beat": BEAT, "worker": CANARY}
AGES: Final = (
    "SELECT name, extract(epoch FROM clock_timestamp() - last_at) FROM api_backgroundtime WHERE name = ANY(%s)"
)


def ages() -> dict[str, float]:
    """Seconds since the newest heartbeat of each; without those that never had one."""
    from django.db import connection  # the constants above are used without Django

    with connection.cursor() as db:
        db.execute(AGES, [list(PULSES.values())])
        age_of: dict[str, float] = {name: float(age) for name, age in db.fetchall()}
    return {part: age_of[name] for part, name in PULSES.items() if name in age_of}
