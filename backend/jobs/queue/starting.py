"""Starts a job on its devices: reservations, attempt, state and outbox row in one transaction.

The caller holds the pool row's lock and has decided.
"""

from collections.abc import Mapping
from datetime import datetime

from pydantic import ValidationError

from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.ending import NOT_UNDERSTOOD
from backend.jobs.lifecycle import change_state
from backend.jobs.models import Job, JobState
from backend.pools.decision.views import Admission
from backend.pools.models import Reservation, ReservationRole, ResourcePool
from engine.spec.job import JobSpec


def locked_if_waiting(job_id: str) -> Job | None:
    """Skips a job that is being cancelled at this moment; its cancellation triggers the next round."""
    jobs = Job.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
    return jobs.filter(pk=job_id, state=JobState.QUEUED).first()


def start(admission: Admission, pool: ResourcePool, replicas: Mapping[str, tuple[int, int]], *, now: datetime) -> bool:
    """True if the job started. `replicas`: by job, the number of elastic replicas that it gets at once, and how many
    of their devices are borrowed."""
    job = locked_if_waiting(admission.job)
    if job is None:
        return False
    try:
        spec = JobSpec.accepted(job.spec)
    except ValidationError:  # accepted by another release; it must not block the jobs behind it
        change_state(job, JobState.FAILED, actor="scheduler", now=now, message=NOT_UNDERSTOOD, failure_class="config")
        return False
    assert spec.min_devices == job.min_devices, "min_devices comes from this spec"
    trainer = spec.trainer_devices
    shares = {ReservationRole.TRAINER: trainer, ReservationRole.ROLLOUT: job.min_devices - trainer}
    # Borrowed devices lie on top of a team's own, so they are counted against the replicas first.
    borrowed = {ReservationRole.ROLLOUT: min(admission.borrowed, shares[ReservationRole.ROLLOUT])}
    borrowed[ReservationRole.TRAINER] = admission.borrowed - borrowed[ReservationRole.ROLLOUT]
    Reservation.objects.bulk_create(
        Reservation(
            job=job,
            attempt=job.num_attempts + 1,
            pool=pool,
            team_id=job.team_id,
            role=role,
            devices=devices,
            borrowed=borrowed[role],
            created_at=now,
        )
        for role, devices in shares.items()
        if devices  # an evaluation holds only its replicas
    )
    more, more_borrowed = replicas.get(job.pk, (0, 0))
    add_replicas(job, pool, spec, more, borrowed=more_borrowed, attempt=job.num_attempts + 1, now=now)
    begin_attempt(job, now=now, message="Waiting for the engine to start.")
    return True


def add_replicas(
    job: Job, pool: ResourcePool, spec: JobSpec, more: int, *, borrowed: int, attempt: int, now: datetime
) -> None:
    """Each elastic replica has its own reservation, and so its own slot."""
    live = Reservation.objects.filter(job=job, role=ReservationRole.ELASTIC, released_at__isnull=True)
    taken = set(live.values_list("slot", flat=True))
    free = [slot for slot in range(len(taken) + more) if slot not in taken][:more]
    size = spec.resources.devices_per_replica
    rows = []
    for slot in reversed(free):
        loan = min(size, borrowed)
        borrowed -= loan
        rows.append(
            Reservation(
                job=job,
                attempt=attempt,
                pool=pool,
                team_id=job.team_id,
                role=ReservationRole.ELASTIC,
                slot=slot,
                devices=size,
                borrowed=loan,
                created_at=now,
            )
        )
    Reservation.objects.bulk_create(rows)
