"""Ends of all samples of a run, counted by the engine.

Invariants:
- one row per job, from the attempt and step that reported last; the counts are the engine's, none is computed here;
- an attempt's last report is final and includes what ended after its last step. The next attempt counts on from it.
"""

from collections.abc import Mapping
from datetime import datetime

from backend.jobs.models import Job
from backend.telemetry.models import SampleLedger


def store_ledger(job: Job, attempt: int, counts: Mapping[str, int], *, at: datetime, is_final: bool = False) -> None:
    """The caller has locked the job. No-op for an engine that does not report a ledger."""
    if counts:
        values = {"attempt": attempt, "step": job.step, "counts": dict(counts), "is_final": is_final, "at": at}
        SampleLedger.objects.bulk_create(
            [SampleLedger(job=job, **values)], update_conflicts=True, unique_fields=["job"], update_fields=[*values]
        )


def ledger_of(job: Job) -> SampleLedger | None:
    """None if nothing was reported yet."""
    return SampleLedger.objects.filter(job=job).first()
