"""People as operators meet them: accounts closed and opened again, and links for who is locked out.

Invariants:
- a closed account opens nothing: its sessions end at once, and its keys are refused as long as it is closed;
- an operator closes no account of their own, nor the last operator's;
- a link is shown once to the operator, who hands it to the person and to nobody else.
"""

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from backend.accounts.models import User
from backend.accounts.operators.acting import Operator
from backend.accounts.sessions.ending import end_other_sessions
from backend.accounts.signing_in.chains import record_done
from backend.accounts.signing_in.resets import make_reset, may_reset, reset_link_of
from backend.errors import Conflict, NotFound


class ClosesOneself(Conflict):
    """You would lock yourself out: another operator closes your account."""

    code = "closes_oneself"


class CannotReset(Conflict):
    """This person gets no link here: the account is closed, signs in by OpenID, or has never proved its address
    (`manage.py account prove`). An operator's is reset at the server (`manage.py account reset`)."""

    code = "cannot_reset"


def people(query: str = "") -> QuerySet[User]:
    """Who signs in, by address."""
    found = User.objects.filter(is_service=False).prefetch_related("memberships__team").order_by("email")
    return found.filter(email__icontains=query) if query else found


def people_after(found: QuerySet[User], public_id: str | None) -> QuerySet[User]:
    """Those who come after this one. Raises `NotFound`."""
    return found if public_id is None else found.filter(email__gt=_found(public_id).email)


@transaction.atomic
def close_account(operator: Operator, public_id: str, *, now: datetime) -> User:
    """What they submitted goes on; an operator or their team cancels it."""
    person = _locked(public_id)
    if person.pk == operator.user.pk:
        raise ClosesOneself
    if person.is_active:
        person.is_active = False
        person.save(update_fields=["is_active"])
        record_done(person, "account.closed", now=now, actor=operator.name)
        end_other_sessions(person, keep=None, now=now, actor=operator.name)
    return person


@transaction.atomic
def open_account(operator: Operator, public_id: str, *, now: datetime) -> User:
    person = _locked(public_id)
    if not person.is_active:
        person.is_active = True
        person.save(update_fields=["is_active"])
        record_done(person, "account.opened", now=now, actor=operator.name)
    return person


def link_to_reset(operator: Operator, public_id: str, *, now: datetime) -> tuple[User, str]:
    """A link that sets a new password, once, for a day."""
    person = _found(public_id)
    if person.is_staff or not may_reset(person, by_operator=True):
        raise CannotReset
    return person, reset_link_of(make_reset(person, now=now, by_operator=True, actor=operator.name))


def end_sessions(operator: Operator, public_id: str, *, now: datetime) -> tuple[User, int]:
    person = _found(public_id)
    return person, end_other_sessions(person, keep=None, now=now, actor=operator.name)


def _locked(public_id: str) -> User:
    return _found(public_id, User.objects.select_for_update(no_key=True))


def _found(public_id: str, users: QuerySet[User] | None = None) -> User:
    found = (User.objects.all() if users is None else users).filter(public_id=public_id, is_service=False).first()
    if found is None:
        raise NotFound("There is no such person.")
    return found
