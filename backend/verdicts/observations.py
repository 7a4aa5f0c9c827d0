"""A job's input to the rules, read from its tables.

Invariant: the cost is bounded however long the job ran: its last steps, and the whole run as a fixed number of means.
"""

from datetime import datetime
from typing import Final

from backend.jobs.models import Job, JobState
from backend.telemetry.series.drawing import ends_of_series
from backend.telemetry.series.thinned import thinned_metrics
from backend.verdicts.models import JobVerdict
from backend.verdicts.rules.finding import WORDS
from backend.verdicts.rules.observed import RECENT, WHOLE, Observed
from backend.verdicts.rules.series import OF_THE_LAST_STEPS, OF_THE_WHOLE, PART
from engine.spec.facts import MAX_PARTS
from engine.spec.job import JobSpec

AWAITED: Final = "training"
"""The only phase in which missing steps count as silence."""


def observed_of(job: Job, before: JobVerdict | None, *, now: datetime) -> Observed:
    """`before`: the previous verdict, if any."""
    ends = ends_of_series(job, OF_THE_LAST_STEPS, num_last=RECENT)
    return Observed(
        recent={name: each.newest for name, each in ends.items()},
        whole=thinned_metrics(job, WHOLE, [*OF_THE_WHOLE, *_parts_of(job)]).series,
        is_training=is_training(job),
        is_over=job.is_terminal,
        silent_s=(now - stepped_at(job, before, now=now)).total_seconds(),
        is_driver_still=job.stalled_since is not None,
        staleness_bound=JobSpec.accepted(job.spec).schedule.staleness_bound,
        alarms=frozenset(kind for kind in WORDS if before and kind in before.alarms),
    )


def _parts_of(job: Job) -> list[str]:
    """At most as many as the engine reports per step: part names that change at every step mean nothing."""
    return list(job.series.filter(name__startswith=PART).order_by("name").values_list("name", flat=True)[:MAX_PARTS])


def is_training(job: Job) -> bool:
    return job.state == JobState.RUNNING and job.phase == AWAITED and job.step < job.steps


def stepped_at(job: Job, before: JobVerdict | None, *, now: datetime) -> datetime:
    """By the database's clock, at the ticks: engine clocks may be wrong, and facts may have waited in a spool."""
    is_same = before is not None and before.step == job.step and is_training(job)
    return before.stepped_at if before is not None and is_same else now
