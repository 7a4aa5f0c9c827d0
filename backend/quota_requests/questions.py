"""Requesting quota, and answering requests.

Invariants:
- a request changes no quota; granting it sets the quota in the same transaction, by the service that operators' own
  changes use, so that neither exists without the other;
- both are in the team's log, and both sides are notified: by mail if it is configured, on their pages in any case.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction

from backend.accounts.acting import Acting
from backend.accounts.letters import send_letter
from backend.accounts.models import Team, User
from backend.accounts.operators.acting import Operator
from backend.errors import Conflict, FieldError, Invalid, NotFound
from backend.pools.models import ResourcePool, TeamQuota
from backend.pools.representations import MOST_DEVICES
from backend.pools.services import QuotaTerms, set_quota
from backend.quota_requests.models import QuotaRequest

LONGEST = 500
ANSWERS_SHOWN_FOR = timedelta(days=14)


class AlreadyRequested(Conflict):
    """Your team has an open request for this pool already. Wait for an operator's answer."""

    code = "asked_already"


class AnsweredAlready(Conflict):
    """Another operator has answered this request."""

    code = "answered_already"


def ask(acting: Acting, pool: ResourcePool, *, wanted: int, reason: str, now: datetime) -> QuotaRequest:
    """Raises `Invalid`, `AlreadyRequested`, `Denied`."""
    acting.refuse_without("jobs:write")
    errors = []
    if not 1 <= wanted <= MOST_DEVICES:
        message = f"Request 1 to {MOST_DEVICES:,} devices; got {wanted:,}."
        errors.append(FieldError(pointer="/wanted", code="wanted", message=message))
    if not reason or len(reason) > LONGEST or not reason.isprintable():
        message = f"Give a reason in one line of 1 to {LONGEST} characters."
        errors.append(FieldError(pointer="/reason", code="reason", message=message))
    if errors:
        raise Invalid(errors=errors)
    with transaction.atomic():
        try:
            with transaction.atomic():
                question = QuotaRequest.objects.create(
                    team=acting.team, pool=pool, asked_by=acting.user, wanted=wanted, reason=reason, asked_at=now
                )
        except IntegrityError:
            raise AlreadyRequested from None
        data = {"pool": pool.pk, "wanted": wanted, "reason": reason}
        acting.record("quota.asked", question.pk, now=now, data=data)
        transaction.on_commit(lambda: _notify_operators(question))
    return question


def answer(
    operator: Operator, question_id: str, *, granted: int | None, words: str, if_match: str | None, now: datetime
) -> QuotaRequest:
    """None refuses. Raises `NotFound`, `AnsweredAlready`, `QuotaExceedsPool`, `PreconditionFailed`, `Invalid`."""
    if len(words) > LONGEST or not words.isprintable():
        raise Invalid(f"An answer is one line of at most {LONGEST} characters.")
    if granted is not None and granted > MOST_DEVICES:
        raise Invalid(f"A quota is at most {MOST_DEVICES:,} devices; got {granted:,}.")
    with transaction.atomic():
        rows = QuotaRequest.objects.select_for_update(of=("self",), no_key=True).select_related("team", "pool")
        question = rows.filter(pk=question_id).first()
        if question is None:
            raise NotFound("Request not found.")
        if question.answered_at is not None:
            raise AnsweredAlready
        if granted is not None:
            terms = _terms(question.pool, question.team, granted)
            set_quota(question.pool, question.team, terms, if_match=if_match, actor=operator.name, now=now)
        question.granted, question.answer = granted, words
        question.answered_at, question.answered_by = now, operator.name
        question.save(update_fields=["granted", "answer", "answered_at", "answered_by"])
        data = {"pool": question.pool_id, "wanted": question.wanted, "granted": granted, "answer": words}
        operator.record("quota.answered", question.pk, now=now, data=data, team_id=question.team_id)
        transaction.on_commit(lambda: _notify_team(question))
    return question


def open_questions() -> Sequence[QuotaRequest]:
    """The oldest first."""
    rows = QuotaRequest.objects.filter(answered_at=None).select_related("team", "pool", "asked_by")
    return list(rows.order_by("asked_at", "pk"))


def newest_question(team: Team, pool: ResourcePool, *, now: datetime) -> QuotaRequest | None:
    """The open request, or one answered recently."""
    newest = QuotaRequest.objects.filter(team=team, pool=pool).order_by("-asked_at", "-pk").first()
    is_old = newest is not None and newest.answered_at is not None and newest.answered_at < now - ANSWERS_SHOWN_FOR
    return None if is_old else newest


def _terms(pool: ResourcePool, team: Team, nominal: int) -> QuotaTerms:
    """Keeps the team's borrow and lend limits and its weight."""
    row = TeamQuota.objects.filter(pool=pool, team=team).first()
    return QuotaTerms(
        nominal=nominal,
        borrow_limit=row.borrow_limit if row else None,
        lend_limit=row.lend_limit if row else None,
        weight=row.weight if row else 1.0,
    )


def _notify_operators(question: QuotaRequest) -> None:
    text = (
        f"Team {question.team.name} requests a quota of {question.wanted} devices in pool {question.pool.name}:\n\n"
        f"{question.reason}\n\nAnswer on the operator page.\n"
    )
    for address in User.objects.filter(is_staff=True, is_active=True).order_by("email").values_list("email", flat=True):
        send_letter(address, f"{question.team.name} requests quota", text)


def _notify_team(question: QuotaRequest) -> None:
    if question.asked_by is None or not question.asked_by.is_active:
        return
    outcome = (
        "The request was declined."
        if question.granted is None
        else f"Your team's quota is now {question.granted} devices."
    )
    text = f"You requested {question.wanted} devices in pool {question.pool.name}. {outcome}\n\n{question.answer}\n"
    send_letter(question.asked_by.email, f"Your quota request for {question.pool.name}", text)
