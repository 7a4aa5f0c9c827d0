"""Users as operators manage them: closing and reopening accounts, and reset links for locked-out users.

Invariants:
- a closed account gives no access: its sessions end at once, and its keys are refused while it is closed;
- disconnecting an OpenID identity ends the account's sessions; its keys stay, as it stays the same person's;
- an operator cannot close their own account, so the last operator's stays open;
- a link is shown once, to the operator, who passes it on to that user only.
"""

from datetime import datetime

from allauth.socialaccount.models import SocialAccount
from django.db import transaction
from django.db.models import QuerySet

from backend.accounts.models import User
from backend.accounts.operators.acting import Operator
from backend.accounts.sessions.ending import end_other_sessions
from backend.accounts.signing_in.chains import record_done
from backend.accounts.signing_in.resets import make_reset, may_reset, reset_link_of
from backend.errors import Conflict, NotFound


class ClosesOneself(Conflict):
    """You cannot close your own account. Another operator can."""

    code = "closes_oneself"


class CannotReset(Conflict):
    """No reset link for this user: the account is closed, signs in by OpenID, or its address is not verified
    (run `manage.py account prove`). Reset an operator's password on the server (`manage.py account reset`)."""

    code = "cannot_reset"


def people(query: str = "") -> QuerySet[User]:
    """Users who can sign in, by address."""
    users = User.objects.filter(is_service=False).order_by("email")
    users = users.prefetch_related("memberships__team", "socialaccount_set")
    return users.filter(email__icontains=query) if query else users


def people_after(users: QuerySet[User], public_id: str | None) -> QuerySet[User]:
    """The users after this one, by address. Raises `NotFound`."""
    return users if public_id is None else users.filter(email__gt=_get(public_id).email)


@transaction.atomic
def close_account(operator: Operator, public_id: str, *, now: datetime) -> User:
    """The user's jobs continue; an operator or their team can cancel them."""
    person = _lock(public_id)
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
    person = _lock(public_id)
    if not person.is_active:
        person.is_active = True
        person.save(update_fields=["is_active"])
        record_done(person, "account.opened", now=now, actor=operator.name)
    return person


@transaction.atomic
def disconnect_identity(operator: Operator, public_id: str, *, now: datetime) -> User:
    """The next OpenID sign-in with the user's verified address connects its identity. Ends the sessions of the old."""
    person = _lock(public_id)
    num, _ = SocialAccount.objects.filter(user=person).delete()
    if num:
        record_done(person, "account.identity_disconnected", now=now, actor=operator.name)
        end_other_sessions(person, keep=None, now=now, actor=operator.name)
    return person


def link_to_reset(operator: Operator, public_id: str, *, now: datetime) -> tuple[User, str]:
    """A single-use link that sets a new password, valid for a day."""
    person = _get(public_id)
    if person.is_staff or not may_reset(person, by_operator=True):
        raise CannotReset
    return person, reset_link_of(make_reset(person, now=now, by_operator=True, actor=operator.name))


def end_sessions(operator: Operator, public_id: str, *, now: datetime) -> tuple[User, int]:
    person = _get(public_id)
    return person, end_other_sessions(person, keep=None, now=now, actor=operator.name)


def _lock(public_id: str) -> User:
    return _get(public_id, User.objects.select_for_update(no_key=True))


def _get(public_id: str, users: QuerySet[User] | None = None) -> User:
    user = (User.objects.all() if users is None else users).filter(public_id=public_id, is_service=False).first()
    if user is None:
        raise NotFound("User not found.")
    return user
