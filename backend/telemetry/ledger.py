"""Where all samples of a run went, by the engine's own count of them.

Invariants:
- one row a job, the word of the attempt and step that said it last; the counts are the engine's, none is made here;
- the last word of an attempt is final: it counts what ended after its last step, too. The next attempt goes on from it.
"""

from collections.abc import Mapping
from datetime import datetime

from backend.jobs.models import Job
from backend.telemetry.models import SampleLedger


def store_ledger(job: Job, attempt: int, counts: Mapping[str, int], *, at: datetime, is_final: bool = False) -> None:
    """The job is locked by the caller. An engine that does not tell changes nothing."""
    if counts:
        told = {"attempt": attempt, "step": job.step, "counts": dict(counts), "is_final": is_final, "at": at}
        SampleLedger.objects.bulk_create(
            [SampleLedger(job=job, **told)], update_conflicts=True, unique_fields=["job"], update_fields=[*told]
        )


def ledger_of(job: Job) -> SampleLedger | None:
    """None: nothing is told yet."""
    return SampleLedger.objects.filter(job=job).first()
