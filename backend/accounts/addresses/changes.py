"""A user's change of address: requested, confirmed from the new address, cancellable from the old one.

    request ──mail to the new address──▶ confirm (signed in, with its link) ──▶ changed
       └──────mail to the old address──▶ cancel (with its link, no sign-in) ──▶ old address, all sessions ended

Invariants:
- a request changes nothing. The change needs a signed-in user and the link sent to the new address, and happens in one
  transaction with its entry in the audit log;
- a request for an address in use looks like any other: same response, same rows, same number of mails. The address'
  owner is notified and gets no link;
- the link sent to the old address works until it is used or seven days after the request, whatever happened meanwhile:
  it restores the address, ends every session and removes the password, which the requester knew;
- a user has at most one open request.
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.core import signing
from django.db import transaction

from backend.accounts.addresses.proved import AddressTaken, is_taken, move
from backend.accounts.models import AddressChange, User
from backend.accounts.signing_in.chains import record_done
from backend.errors import Conflict, NotFound

LASTS: Final = timedelta(hours=24)
CANCELLABLE: Final = timedelta(days=7)  # a user on holiday reads that mail late
_CANCEL = signing.Signer(salt="cancel an address change")


class DeadLink(NotFound):
    """This link was used or cancelled, has expired, or is for another account. Request a new one."""


class SameAddress(Conflict):
    """This is already your address."""

    code = "same_address"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRequest:
    change: AddressChange
    token: str
    is_taken: bool
    """Shown only to the address' owner."""


@transaction.atomic
def request_change(user: User, after: str, *, now: datetime, by_operator: bool = False) -> ChangeRequest:
    """Replaces an open request."""
    after = after.lower()
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if after == user.email.lower():
        raise SameAddress
    user.address_changes.filter(done_at=None, cancelled_at=None).update(cancelled_at=now)
    token = secrets.token_urlsafe(32)
    change = AddressChange.objects.create(
        user=user,
        before=user.email.lower(),
        after=after,
        proof_sha256=_digest(token),
        by_operator=by_operator,
        asked_at=now,
    )
    actor = "operator" if by_operator else ""
    record_done(user, "address.change_asked", now=now, data={"to": after}, actor=actor)
    return ChangeRequest(change=change, token=token, is_taken=is_taken(after, excluding=user))


def open_change(user: User, *, now: datetime) -> AddressChange | None:
    return user.address_changes.filter(done_at=None, cancelled_at=None, asked_at__gt=now - LASTS).first()


def change_to_confirm(token: str, user: User, *, now: datetime) -> AddressChange | None:
    change = open_change(user, now=now)
    return change if change and change.proof_sha256 == _digest(token) and change.before == user.email.lower() else None


@transaction.atomic
def confirm_change(token: str, user: User, *, now: datetime) -> AddressChange:
    """Raises `DeadLink`, also if another account uses the address by now."""
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    change = change_to_confirm(token, user, now=now)
    if change is None or is_taken(change.after, excluding=user):
        raise DeadLink
    change.done_at = now
    change.save(update_fields=["done_at"])
    if not change.by_operator:
        user.address_by_hand = False
        user.save(update_fields=["address_by_hand"])
    try:
        move(user, change.after)
    except AddressTaken:
        raise DeadLink from None
    user.reset_links.filter(used_at=None).delete()
    record_done(user, "address.changed", now=now, data={"from": change.before, "to": change.after})
    return change


@transaction.atomic
def withdraw_change(user: User, *, now: datetime) -> None:
    """Cancels the open request. The old address' link stays valid: an intruder may have cancelled, not the user."""
    if user.address_changes.filter(done_at=None, cancelled_at=None).update(cancelled_at=now):
        record_done(user, "address.change_withdrawn", now=now)


def change_to_cancel(token: str, *, now: datetime) -> AddressChange | None:
    try:
        pk = _CANCEL.unsign(token)
    except signing.BadSignature:
        return None
    since = now - CANCELLABLE
    return (
        AddressChange.objects.select_related("user").filter(pk=pk, asked_at__gt=since, user__is_active=True)
        .exclude(cancelled_at__isnull=False, done_at__isnull=False).first()
    )  # fmt: skip


@transaction.atomic
def cancel_change(token: str, *, now: datetime) -> User:
    """Raises `DeadLink`. Ends all sessions even if another account uses the old address by now."""
    unlocked = change_to_cancel(token, now=now)
    if unlocked is None:
        raise DeadLink
    user = User.objects.select_for_update(no_key=True).get(pk=unlocked.user_id)
    change = change_to_cancel(token, now=now)
    if change is None:
        raise DeadLink
    # Later requests are cancelled too: their links lie in mailboxes that are not the owner's.
    user.address_changes.filter(asked_at__gte=change.asked_at).update(cancelled_at=now, done_at=now)
    user.reset_links.filter(used_at=None).delete()
    user.set_unusable_password()  # a new hash ends all sessions
    user.save(update_fields=["password"])
    if user.email.lower() != change.before and not is_taken(change.before, excluding=user):
        move(user, change.before)
    data = {"asked": change.after, "is_now": user.email}
    record_done(user, "address.change_cancelled", now=now, data=data, actor="holder of the old address")
    return user


def proof_link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/accounts/email/confirm/{token}/"


def cancel_link_of(change: AddressChange) -> str:
    """Signed, not stored, so the mail that reports the completed change can contain the same link."""
    return f"{settings.ENVIRONMENT.public_url}/accounts/email/cancel/{_CANCEL.sign(change.pk)}/"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
