"""Crediting an attempt by hand, and taking that back.

Invariants:
- a credit is what a fault with a named cause gets: the attempt's fault time, at the price of its time. Only what is
  credited changes, never the kinds of use or the cost;
- an attempt has at most one credit, given after its end; a failure that is credited already gets none;
- credit, settled slices and audit entry change in one transaction, under the job's lock and those of its reservations,
  which settling takes too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import F, Q, QuerySet

from backend.accounts.operators.acting import Operator
from backend.borders.types import is_storable
from backend.errors import Conflict, FieldError, Invalid, NotFound
from backend.jobs.lifecycle import locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.pools.models import Reservation
from backend.usage.models import AttemptCredit, UsageSlice
from backend.usage.services import book_credit, unbook_credit
from backend.usage.split import Ending
from backend.usage.timelines import CREDITED_CLASSES, LIMIT_CLASSES, ending_of, failure_class_of

LONGEST_REASON: Final = 300
MOST_SHOWN: Final = 100


class StillRuns(Conflict):
    """The attempt has not ended. Credit it after its end."""

    code = "attempt_runs"


class CreditedAlready(Conflict):
    """The attempt is credited already: its fault has a named cause of the platform's, or an operator gave a credit."""

    code = "credited_already"


class NothingToCredit(Conflict):
    """The attempt has no fault time: it ended well, or reached a limit of the job's own."""

    code = "nothing_to_credit"


@transaction.atomic
def give_credit(operator: Operator, job_id: str, n: int, *, reason: str, now: datetime) -> AttemptCredit:
    """Idempotent for the same reason. Raises `NotFound`, `StillRuns`, `CreditedAlready`, `NothingToCredit`,
    `Invalid`."""
    _validate_reason(reason)
    job = _locked(job_id)
    attempt = JobAttempt.objects.filter(job=job, n=n).first()
    if attempt is None:
        raise NotFound("Attempt not found.")
    given = active_credits().filter(attempt=attempt).first()
    if given is not None:
        if given.reason != reason:
            raise CreditedAlready
        return given
    if attempt.ended_at is None:
        raise StillRuns
    match ending_of(job, attempt, is_credited=False):
        case Ending.PLATFORM_FAULT:
            raise CreditedAlready
        case Ending.WELL:
            raise NothingToCredit
    credit = AttemptCredit.objects.create(attempt=attempt, reason=reason, given_at=now, given_by=operator.name)
    reservations = _locked_reservations(job)
    settled = set(UsageSlice.objects.filter(job=job).values_list("reservation_id", flat=True))
    book_credit(credit, [row for row in reservations if row.pk in settled])
    _record(operator, "credit.given", credit, job, now)
    return credit


@transaction.atomic
def take_back_credit(operator: Operator, credit_id: int, *, now: datetime) -> AttemptCredit:
    """Idempotent. Raises `NotFound`."""
    job_id = AttemptCredit.objects.filter(pk=credit_id).values_list("attempt__job_id", flat=True).first()
    if job_id is None:
        raise NotFound("Credit not found.")
    job = locked_job(job_id)
    credit = AttemptCredit.objects.select_related("attempt").get(pk=credit_id)
    if credit.taken_back_at is not None:
        return credit
    _locked_reservations(job)
    unbook_credit(credit)
    credit.taken_back_at, credit.taken_back_by = now, operator.name
    credit.save(update_fields=["taken_back_at", "taken_back_by"])
    _record(operator, "credit.taken_back", credit, job, now)
    return credit


def active_credits() -> QuerySet[AttemptCredit]:
    return AttemptCredit.objects.filter(taken_back_at__isnull=True)


def credits_of(job: Job) -> QuerySet[AttemptCredit]:
    """Those that the team's bill contains, by attempt."""
    return active_credits().filter(attempt__job=job).select_related("attempt").order_by("attempt__n")


def all_credits(job_id: str = "") -> QuerySet[AttemptCredit]:
    """Newest first, with those taken back."""
    rows = AttemptCredit.objects.select_related("attempt__job__team").order_by("-given_at", "-pk")
    return rows.filter(attempt__job_id=job_id) if job_id else rows


@dataclass(frozen=True, slots=True)
class BilledFailure:
    attempt: JobAttempt
    failure_class: str


def billed_failures(job_id: str = "") -> Sequence[BilledFailure]:
    """Those that ended last, newest first."""
    of_job = Q(failure_class="", n=F("job__num_attempts"), job__state=JobState.FAILED)
    of_job &= ~Q(job__failure_class__in=("", *_NOT_BILLED))
    rows = JobAttempt.objects.filter(of_job | ~Q(failure_class__in=("", *_NOT_BILLED)), ended_at__isnull=False)
    rows = rows.filter(~Q(pk__in=active_credits().values("attempt")))
    if job_id:
        rows = rows.filter(job_id=job_id)
    rows = rows.select_related("job__team").order_by("-ended_at", "-pk")[:MOST_SHOWN]
    return [BilledFailure(each, failure_class_of(each.job, each)) for each in rows]


_NOT_BILLED: Final = sorted(CREDITED_CLASSES | LIMIT_CLASSES)


def _locked(job_id: str) -> Job:
    if not is_storable(job_id):
        raise NotFound("Job not found.")
    try:
        return locked_job(job_id)
    except Job.DoesNotExist:
        raise NotFound("Job not found.") from None


def _locked_reservations(job: Job) -> list[Reservation]:
    """Settling takes the same locks, so that a reservation is settled either before or after the change."""
    return list(Reservation.objects.select_for_update(of=("self",), no_key=True).filter(job=job).order_by("pk"))


def _validate_reason(reason: str) -> None:
    if not reason or len(reason) > LONGEST_REASON:
        message = f"must have 1 to {LONGEST_REASON} characters, for the team to read; got {len(reason)}"
        raise Invalid(errors=[FieldError(pointer="/reason", code="length", message=message)])


def _record(operator: Operator, action: str, credit: AttemptCredit, job: Job, now: datetime) -> None:
    data = {"credit": str(credit.pk), "attempt": credit.attempt.n, "reason": credit.reason}
    operator.record(action, job.pk, now=now, data=data, team_id=job.team_id)
