"""The Celery application: `celery -A backend.celery worker` and `celery -A backend.celery beat`.

Invariants:
- a message carries ids only, never state, and may be lost or duplicated: Postgres is the truth, the queue a hint;
- no background task waits for a job; each ends within seconds, far below the visibility timeout;
- beat is a safety net, not a driver: a duplicate, late or missing tick does no harm.
"""

import os

from celery import Celery
from celery.signals import beat_init, before_task_publish
from django.db import close_old_connections

from backend.pulses import BEAT, CANARY, EVERY_S

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
# Django's system checks import every route, which this process does not serve; the tests run them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("laminar")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(
    ["backend.api", "backend.audit", "backend.jobs", "backend.reconcile", "backend.telemetry", "backend.webhooks"],
    related_name="background",
)
app.autodiscover_tasks(
    [
        *("backend.accounts", "backend.assets", "backend.budgets", "backend.checkpoints", "backend.operating"),
        "backend.usage",
        "backend.verdicts",
    ],
    related_name="background",
)

SCHEDULE_EVERY_S = 5.0
DISPATCH_EVERY_S = 2.0
VALIDATE_EVERY_S = 15.0
RECONCILE_EVERY_S = 3.0
SWEEP_EVERY_S = 30.0
PROBE_EVERY_S = 30.0
ARCHIVE_EVERY_S = 30.0
REDUCE_EVERY_S = 300.0
REMOVE_EVERY_S = 300.0
FORGET_EVERY_S = 600.0
VERIFY_EVERY_S = 5.0
TIDY_EVERY_S = 30.0
SWEEP_ASSETS_EVERY_S = 30.0
SETTLE_EVERY_S = 30.0
WARN_EVERY_S = 60.0
JUDGE_EVERY_S = 5.0
ANCHOR_EVERY_S = 300.0
WEBHOOKS_EVERY_S = 3.0
FORGET_DELIVERIES_EVERY_S = 3_600.0
FORGET_SESSIONS_EVERY_S = 600.0


def _tick(name: str, every_s: float) -> dict[str, object]:
    """A tick expires at the next one, so that ticks do not pile up while no worker runs."""
    return {"task": name, "schedule": every_s, "options": {"expires": max(every_s, 5.0)}}


@beat_init.connect
def _note_ticks(**_: object) -> None:
    """Records ticks from now on, and sends the first canary at once instead of at the first tick."""
    before_task_publish.connect(_note_tick, sender=CANARY)
    app.send_task(CANARY, expires=EVERY_S)


def _note_tick(**_: object) -> None:
    from backend.api.background_times import note_background  # imported once Django is set up

    close_old_connections()  # Postgres may have been restarted since the last tick
    note_background(BEAT, 0.0)


app.conf.beat_schedule = {
    "canary": _tick(CANARY, EVERY_S),  # through the only queue
    "schedule-all-pools": _tick("jobs.schedule_all_pools", SCHEDULE_EVERY_S),
    "validate-waiting": _tick("jobs.validate_waiting", VALIDATE_EVERY_S),
    "dispatch-outbox": _tick("jobs.dispatch_outbox", DISPATCH_EVERY_S),
    "reconcile": _tick("reconcile.reconcile", RECONCILE_EVERY_S),
    "archive-trajectories": _tick("telemetry.archive_trajectories", ARCHIVE_EVERY_S),
    "reduce-series": _tick("telemetry.reduce_old_series", REDUCE_EVERY_S),
    "remove-old": _tick("telemetry.remove_old", REMOVE_EVERY_S),
    "sweep-zombies": _tick("reconcile.sweep_zombies", SWEEP_EVERY_S),
    "probe-rays": _tick("reconcile.inspect_rays", PROBE_EVERY_S),
    "probe-store": _tick("operating.check_store", PROBE_EVERY_S),
    "forget-expired-keys": _tick("api.forget_expired_keys", FORGET_EVERY_S),
    "anchor-audit": _tick("audit.anchor_heads", ANCHOR_EVERY_S),
    "send-webhooks": _tick("webhooks.send", WEBHOOKS_EVERY_S),
    "forget-sessions": _tick("accounts.forget_sessions", FORGET_SESSIONS_EVERY_S),
    "forget-deliveries": _tick("webhooks.forget", FORGET_DELIVERIES_EVERY_S),
    "verify-checkpoints": _tick("checkpoints.verify", VERIFY_EVERY_S),
    "tidy-checkpoints": _tick("checkpoints.tidy", TIDY_EVERY_S),
    "sweep-assets": _tick("assets.sweep", SWEEP_ASSETS_EVERY_S),
    "settle-usage": _tick("usage.settle", SETTLE_EVERY_S),
    "warn-of-budgets": _tick("budgets.warn", WARN_EVERY_S),
    "judge-jobs": _tick("verdicts.judge", JUDGE_EVERY_S),
}
