"""Proof of an address: who has it, and who says so.

Invariants:
- a person has one address, `User.email`, and it counts only while allauth's `EmailAddress` of it is verified: sign-in,
  invitations, OpenID's first sign-in, resets and letters all ask here, or ask that row;
- no page adds an address: it is proved by a mail, by a used invitation, by OpenID, or by the operator's word;
- an address is proved for one person at most (the database holds it).
"""

from allauth.account.models import EmailAddress
from django.db import IntegrityError, transaction

from backend.accounts.models import User
from backend.errors import Conflict


class AddressTaken(Conflict):
    """This address has another account."""

    code = "address_taken"


def is_proved(user: User) -> bool:
    return bool(EmailAddress.objects.filter(user_id=user.pk, email=user.email.lower(), verified=True).exists())


def person_at(email: str) -> User | None:
    """The person who has proved this address; a closed account's too."""
    row = EmailAddress.objects.select_related("user").filter(email=email.lower(), verified=True).first()
    return row.user if row is not None and row.user.email.lower() == row.email else None


def is_taken(email: str, *, besides: User | None = None) -> bool:
    """By an account that has it, proved or not."""
    others = User.objects.filter(email__iexact=email)
    return others.exclude(pk=besides.pk).exists() if besides else others.exists()


@transaction.atomic
def vouch_for(user: User) -> None:
    """Somebody whose word counts says that this address is this person's. Raises `AddressTaken`."""
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
def move(user: User, email: str) -> None:
    """The caller has seen the proof, and holds the person's row. Raises `AddressTaken`."""
    user.email = email.lower()
    try:
        with transaction.atomic():
            user.save(update_fields=["email"])
    except IntegrityError:
        raise AddressTaken from None
    vouch_for(user)
