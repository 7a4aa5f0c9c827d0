"""The facts of a job's engine, as its driver sends them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import ControlRequest, Job
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch


def send_facts(job: Job, *bodies: dict[str, Any], later: timedelta = timedelta()) -> None:
    """Facts of the newest attempt."""
    attempt, now = job.attempts.latest("n"), datetime.now(UTC) + later
    facts = [{"seq": attempt.acked_seq + 1 + at, "at": now, "body": body} for at, body in enumerate(bodies)]
    batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
    ingest_facts(attempt, batch, now=now)


def acknowledge(job: Job) -> None:
    request = ControlRequest.objects.get(job=job, acknowledged_at=None)
    send_facts(job, {"type": "request_acknowledged", "request_id": request.pk})


def log_lines(part: str, *lines: tuple[str, str]) -> dict[str, Any]:
    """(level, message)."""
    now = datetime.now(UTC)
    stamped = [{"at": now, "level": level, "message": message} for level, message in lines]
    return {"type": "log_lines", "component": part, "lines": stamped}


def saved(job: Job, *, step: int, **changes: Any) -> Checkpoint:
    """A verified checkpoint of the job."""
    now = datetime.now(UTC)
    told: dict[str, Any] = {
        "attempt": 1, "version": step, "uri": f"file:///store/{job.pk}/{step}", "manifest_sha256": "0" * 64,
        "num_bytes": 2_140_000, "created_at": now, "verified_at": now, "state": CheckpointState.COMPLETE,
    }  # fmt: skip
    return Checkpoint.objects.create(job=job, step=step, **(told | changes))
