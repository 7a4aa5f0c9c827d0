"""Verification of addresses: whose an address is, and on what evidence.

Invariants:
- a user has one address, `User.email`, and it counts only while allauth's `EmailAddress` of it is verified: sign-in,
  invitations, the first OpenID sign-in, resets and mails all check this module or that row;
- no page adds an address: it is verified by mail, by a used invitation, by OpenID, or by the operator;
- an address is verified for at most one user (a database constraint).
"""

from typing import TYPE_CHECKING

from allauth.account.models import EmailAddress
from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction

from backend.errors import Conflict

if TYPE_CHECKING:
    from backend.accounts.models import User


class AddressTaken(Conflict):
    """Another account uses this address. Use another one."""

    code = "address_taken"


def is_proved(user: "User") -> bool:
    return bool(EmailAddress.objects.filter(user_id=user.pk, email=user.email.lower(), verified=True).exists())


def person_at(email: str) -> "User | None":
    """The user with this verified address, also if the account is closed."""
    row = EmailAddress.objects.select_related("user").filter(email=email.lower(), verified=True).first()
    return row.user if row is not None and row.user.email.lower() == row.email else None


def is_taken(email: str, *, excluding: "User | None" = None) -> bool:
    """True if another account has the address, verified or not."""
    others = get_user_model().objects.filter(email__iexact=email)
    return others.exclude(pk=excluding.pk).exists() if excluding else others.exists()


@transaction.atomic
def vouch_for(user: "User") -> None:
    """Marks the user's address as verified, on trusted evidence. Raises `AddressTaken`."""
    email = user.email.lower()
    EmailAddress.objects.filter(user_id=user.pk).exclude(email=email).delete()
    try:
        with transaction.atomic():
            EmailAddress.objects.update_or_create(
                user_id=user.pk, email=email, defaults={"verified": True, "primary": True}
            )
    except IntegrityError:
        raise AddressTaken from None


@transaction.atomic
def move(user: "User", email: str) -> None:
    """The caller has checked the evidence and holds the lock on the user's row. Raises `AddressTaken`."""
    user.email = email.lower()
    try:
        with transaction.atomic():
            user.save(update_fields=["email"])
    except IntegrityError:
        raise AddressTaken from None
    vouch_for(user)
