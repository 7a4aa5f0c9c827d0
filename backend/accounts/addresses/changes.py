"""A person's move to another address: asked for, proved from the new one, cancellable from the old one.

    ask ──letter to the new address──▶ confirm (signed in, with its link) ──▶ moved
     └──letter to the old address────▶ cancel (with its link, no sign-in) ──▶ as before, and everybody is out

Invariants:
- asking moves nothing; only who is signed in as the person and holds the new address' link moves it, in one transaction
  with its entry in the audit log;
- an address that somebody has is asked for like any other: same answer, same rows, as many letters. Its owner is told,
  and gets no link;
- the old address' link works until it was used or seven days after the wish, whatever happened meanwhile: whoever has
  it sets the address back, ends every session and takes the password away, since it was known to whoever asked;
- at most one wish of a person is open.
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
CANCELLABLE: Final = timedelta(days=7)  # somebody is on holiday, and reads that letter late
_CANCEL = signing.Signer(salt="cancel an address change")


class DeadLink(NotFound):
    """This link was used, cancelled, or has expired, or it is for somebody else."""


class SameAddress(Conflict):
    """This is your address already."""

    code = "same_address"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    change: AddressChange
    token: str
    is_taken: bool
    """Told to nobody but the address' owner."""


@transaction.atomic
def ask_for_change(user: User, after: str, *, now: datetime, by_operator: bool = False) -> Asked:
    """A new wish takes the place of the open one."""
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
    return Asked(change=change, token=token, is_taken=is_taken(after, besides=user))


def open_change(user: User, *, now: datetime) -> AddressChange | None:
    return user.address_changes.filter(done_at=None, cancelled_at=None, asked_at__gt=now - LASTS).first()


def change_to_confirm(token: str, user: User, *, now: datetime) -> AddressChange | None:
    found = open_change(user, now=now)
    return found if found and found.proof_sha256 == _digest(token) and found.before == user.email.lower() else None


@transaction.atomic
def confirm_change(token: str, user: User, *, now: datetime) -> AddressChange:
    """Raises `DeadLink`, also where somebody else has the address by now."""
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    change = change_to_confirm(token, user, now=now)
    if change is None or is_taken(change.after, besides=user):
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
    """The person thought better of it. The old address' link works on: it may not have been the person."""
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
    """Raises `DeadLink`. Where somebody else has the old address by now, everybody is put out all the same."""
    found = change_to_cancel(token, now=now)
    if found is None:
        raise DeadLink
    user = User.objects.select_for_update(no_key=True).get(pk=found.user_id)
    change = change_to_cancel(token, now=now)
    if change is None:
        raise DeadLink
    # Whatever was moved since goes with it: its links lie in mailboxes that are not the owner's.
    user.address_changes.filter(asked_at__gte=change.asked_at).update(cancelled_at=now, done_at=now)
    user.reset_links.filter(used_at=None).delete()
    user.set_unusable_password()  # and with the hash go all sessions
    user.save(update_fields=["password"])
    if user.email.lower() != change.before and not is_taken(change.before, besides=user):
        move(user, change.before)
    told = {"asked": change.after, "is_now": user.email}
    record_done(user, "address.change_cancelled", now=now, data=told, actor="holder of the old address")
    return user


def proof_link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/accounts/email/confirm/{token}/"


def cancel_link_of(change: AddressChange) -> str:
    """Signed, not stored: it can be written again into the letter that says that it was done."""
    return f"{settings.ENVIRONMENT.public_url}/accounts/email/cancel/{_CANCEL.sign(change.pk)}/"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
