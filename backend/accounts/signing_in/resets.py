"""A link that sets a new password: by mail, or by the operator's hand where no mail goes out.

Invariants:
- it works once, until it expires, a newer one is made, or the address changes; what is stored is a hash;
- it opens only an account that is not closed and signs in with a password at all: whoever comes by OpenID gets no
  second door here;
- a mailed one proves the address, so an account that only claimed one is from then on whose mailbox it is; one from the
  operator's hand proves nothing, and is for a proved address;
- using it ends every session. It signs nobody in: the second factor is asked for as ever.
"""

import hashlib
import secrets
from datetime import datetime, timedelta

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.db import transaction

from backend.accounts.addresses.proved import is_proved, vouch_for
from backend.accounts.models import ResetLink, User
from backend.accounts.signing_in.chains import record_done
from backend.errors import NotFound

BY_MAIL_LASTS = timedelta(hours=1)
BY_HAND_LASTS = timedelta(hours=24)  # it has to find its way to somebody


class DeadLink(NotFound):
    """This link was used, replaced by a newer one, or has expired."""


def resettable(email: str) -> User | None:
    """Who may be sent a link."""
    user = User.objects.filter(email=email.lower(), is_service=False).first()
    return user if user is not None and may_reset(user, by_operator=False) else None


def may_reset(user: User, *, by_operator: bool) -> bool:
    by_password = user.has_usable_password() or not SocialAccount.objects.filter(user=user).exists()
    return user.is_active and not user.is_service and by_password and (not by_operator or is_proved(user))


@transaction.atomic
def make_reset(user: User, *, now: datetime, by_operator: bool = False, actor: str = "") -> str:
    """The token of a new link; older ones are dead. `actor`: the operator, if it is known who."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    user.reset_links.filter(used_at=None).delete()
    token = secrets.token_urlsafe(32)
    ResetLink.objects.create(
        user=user,
        token_sha256=_digest(token),
        by_operator=by_operator,
        made_at=now,
        expires_at=now + (BY_HAND_LASTS if by_operator else BY_MAIL_LASTS),
    )
    record_done(user, "password.reset_asked", now=now, actor=actor or ("operator" if by_operator else "stranger"))
    return token


def open_reset(token: str, *, now: datetime) -> ResetLink | None:
    found = ResetLink.objects.select_related("user").filter(token_sha256=_digest(token), used_at=None).first()
    return found if found and found.expires_at > now and may_reset(found.user, by_operator=found.by_operator) else None


@transaction.atomic
def use_reset(token: str, password: str, *, now: datetime) -> User:
    """Raises `DeadLink`."""
    found = open_reset(token, now=now)
    if found is None:
        raise DeadLink
    user = User.objects.select_for_update(no_key=True).get(pk=found.user_id)
    if ResetLink.objects.filter(pk=found.pk, used_at=None).update(used_at=now) != 1:
        raise DeadLink
    user.set_password(password)  # and with the hash go all sessions
    if not found.by_operator:
        user.address_by_hand = False
        vouch_for(user)
    user.save(update_fields=["password", "address_by_hand"])
    user.reset_links.filter(used_at=None).delete()
    record_done(user, "password.reset", now=now, data={"by": "operator" if found.by_operator else "mail"})
    return user


def reset_link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/accounts/password/reset/{token}/"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
