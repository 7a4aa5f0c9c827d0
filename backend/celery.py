"""The Celery application: `celery -A backend.celery worker` and `celery -A backend.celery beat`.

Invariants:
- a message carries ids only, never a state, and may be lost or doubled: Postgres is the truth, the queue a hint;
- no background task waits for a job; each ends within seconds, far below the visibility timeout;
- the beat is a safety net, not a mover: a tick that comes twice, late or never does no harm.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")

app = Celery("laminar")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["backend.api", "backend.jobs", "backend.reconcile"], related_name="background")

SCHEDULE_EVERY_S = 5.0
DISPATCH_EVERY_S = 2.0
RECONCILE_EVERY_S = 3.0
SWEEP_EVERY_S = 30.0
FORGET_EVERY_S = 600.0


def _tick(name: str, every_s: float) -> dict[str, object]:
    """A tick that nobody took before the next one is worthless: while no worker runs they must not pile up."""
    return {"task": name, "schedule": every_s, "options": {"expires": max(every_s, 5.0)}}


app.conf.beat_schedule = {
    "schedule-all-pools": _tick("jobs.schedule_all_pools", SCHEDULE_EVERY_S),
    "dispatch-outbox": _tick("jobs.dispatch_outbox", DISPATCH_EVERY_S),
    "reconcile": _tick("reconcile.reconcile", RECONCILE_EVERY_S),
    "sweep-zombies": _tick("reconcile.sweep_zombies", SWEEP_EVERY_S),
    "forget-expired-keys": _tick("api.forget_expired_keys", FORGET_EVERY_S),
}
