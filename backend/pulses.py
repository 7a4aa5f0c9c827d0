"""The pulse of the work behind the pages: beat's newest tick, and the newest canary that came through every queue.

    beat ──tick, noted as BEAT──▶ queue ──▶ worker ──done, noted as CANARY──▶ whoever asks how they are

Invariants:
- a process that is there says nothing: what counts is that work was begun, or came to its end;
- by the clock of Postgres, in the table in which every background task is noted.
"""

from typing import Final

BEAT: Final = "beat.tick"
CANARY: Final = "jobs.canary"
EVERY_S: Final = 5.0
LATE_AFTER_S: Final = 30.0  # six of them: a worker that has both hands full for a moment is no worker that is gone
PULSES: Final = {"beat": BEAT, "worker": CANARY}
AGES: Final = (
    "SELECT name, extract(epoch FROM clock_timestamp() - last_at) FROM api_backgroundtime WHERE name = ANY(%s)"
)


def ages() -> dict[str, float]:
    """Seconds since the newest pulse of each; without those that never had one."""
    from django.db import connection  # whoever reads the table above needs no Django

    with connection.cursor() as db:
        db.execute(AGES, [list(PULSES.values())])
        found: dict[str, float] = {name: float(age) for name, age in db.fetchall()}
    return {part: found[name] for part, name in PULSES.items() if name in found}
