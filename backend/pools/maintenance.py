"""Maintenance of the site: announced by an operator, shown on every page and by REST, ends by itself.

    announced ──▶ (stops_from: nothing starts) ──▶ begins ──▶ ends: by itself, or earlier by an operator

Invariants:
- running jobs continue; starts stop and resume by the clock, without an operator;
- a change of a notice needs the version that the operator saw; every action is in the site's log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models import QuerySet

from backend.accounts.operators.acting import Operator
from backend.api.etags import etag_of, refuse_if_changed
from backend.errors import FieldError, Invalid, NotFound
from backend.pools.changes import pool_changed
from backend.pools.models import Maintenance, ResourcePool

LONGEST_TEXT: Final = 300
LONGEST: Final = timedelta(days=31)
"""Bounds how long a forgotten notice can stop the site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTerms:
    text: str
    begins_at: datetime
    ends_at: datetime
    stops_from: datetime | None = None
    """No job starts from then until the end; None: jobs start."""


def announce(operator: Operator, terms: MaintenanceTerms, *, now: datetime) -> Maintenance:
    """Raises `Invalid`."""
    _refuse_nonsense(terms, now)
    with transaction.atomic():
        notice = Maintenance.objects.create(**asdict(terms), created_at=now)
        _note(operator, notice, "maintenance.announced", now=now, data=_describe(terms))
    return notice


def change_maintenance(
    operator: Operator, notice_id: str, terms: MaintenanceTerms, *, if_match: str | None, now: datetime
) -> Maintenance:
    """Raises `NotFound`, `Invalid`, `PreconditionFailed`."""
    _refuse_nonsense(terms, now)
    with transaction.atomic():
        notice = _lock(notice_id, if_match, now)
        before = MaintenanceTerms(**{name: getattr(notice, name) for name in asdict(terms)})
        if before == terms:
            return notice
        for name, value in asdict(terms).items():
            setattr(notice, name, value)
        notice.version += 1
        notice.save()
        data = {"before": _describe(before), "after": _describe(terms)}
        _note(operator, notice, "maintenance.changed", now=now, data=data)
    return notice


def end_maintenance(operator: Operator, notice_id: str, *, if_match: str | None, now: datetime) -> Maintenance:
    """Ends it now: the notice disappears, and jobs start. Raises `NotFound`, `PreconditionFailed`."""
    with transaction.atomic():
        notice = _lock(notice_id, if_match, now)
        notice.ended_at, notice.version = now, notice.version + 1
        notice.save()
        _note(operator, notice, "maintenance.ended", now=now, data={})
    return notice


def announced(now: datetime) -> QuerySet[Maintenance]:
    """Upcoming and current maintenance, the next one first."""
    return Maintenance.objects.filter(ended_at__isnull=True, ends_at__gt=now).order_by("begins_at", "pk")


def stops_starts(now: datetime) -> bool:
    return announced(now).filter(stops_from__lte=now).exists()


def the_notice(notice_id: str, now: datetime) -> Maintenance:
    """Raises `NotFound`, also if it is over."""
    notice = announced(now).filter(pk=notice_id).first()
    if notice is None:
        raise NotFound("Maintenance not found, or it is over.")
    return notice


def _lock(notice_id: str, if_match: str | None, now: datetime) -> Maintenance:
    the_notice(notice_id, now)
    notice = Maintenance.objects.select_for_update().get(pk=notice_id)
    refuse_if_changed(if_match, etag_of(notice.version))
    return notice


def _refuse_nonsense(terms: MaintenanceTerms, now: datetime) -> None:
    errors: list[FieldError] = []

    def add_error(field: str, message: str) -> None:
        errors.append(FieldError(pointer=f"/{field}", code=field, message=message))

    if not 1 <= len(terms.text) <= LONGEST_TEXT or not terms.text.isprintable():
        add_error("text", f"Describe it in one line of 1 to {LONGEST_TEXT} characters; got {len(terms.text)}.")
    if terms.ends_at <= max(terms.begins_at, now):
        add_error("ends_at", f"Must be in the future and after the beginning; got {terms.ends_at:%Y-%m-%d %H:%M} UTC.")
    elif terms.ends_at - min(terms.begins_at, terms.stops_from or terms.begins_at) > LONGEST:
        add_error("ends_at", f"Maintenance lasts at most {LONGEST.days} days. You can extend it later.")
    if terms.stops_from is not None and terms.stops_from >= terms.ends_at:
        add_error("stops_from", "Must be before the end.")
    if errors:
        raise Invalid(errors=errors)


def _note(operator: Operator, notice: Maintenance, action: str, *, now: datetime, data: Mapping[str, object]) -> None:
    for pool_id in _pool_ids():
        pool_changed()(pool_id, now)
    operator.record(action, notice.pk, now=now, data=data)


def _pool_ids() -> Sequence[str]:
    return list(ResourcePool.objects.order_by("pk").values_list("pk", flat=True))


def _describe(terms: MaintenanceTerms) -> dict[str, object]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(terms).items()}
