"""Links that set a new password: by mail, or passed on by the operator where no mail is sent.

Invariants:
- a link works once, until it expires, a newer one is made, or the address changes; only its hash is stored;
- it works only for an open account that signs in with a password: users of OpenID get no second way in;
- a mailed link verifies the address, so an unverified account then belongs to the owner of the mailbox; a link passed
  on by the operator verifies nothing, and is only for a verified address;
- using a link ends every session and does not sign in: the second factor is still required.
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
BY_HAND_LASTS = timedelta(hours=24)  # passed on by hand


class DeadLink(NotFound):
    """This link was used, has expired, or a newer one replaced it. Request a new one."""


def resettable(email: str) -> User | None:
    """The user who may be sent a reset link."""
    user = User.objects.filter(email=email.lower(), is_service=False).first()
    return user if user is not None and may_reset(user, by_operator=False) else None


def may_reset(user: User, *, by_operator: bool) -> bool:
    by_password = user.has_usable_password() or not SocialAccount.objects.filter(user=user).exists()
    return user.is_active and not user.is_service and by_password and (not by_operator or is_proved(user))


@transaction.atomic
def make_reset(user: User, *, now: datetime, by_operator: bool = False, actor: str = "") -> str:
    """The token of a new link; older links stop working. `actor`: the operator, if known."""
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
    link = ResetLink.objects.select_related("user").filter(token_sha256=_digest(token), used_at=None).first()
    return link if link and link.expires_at > now and may_reset(link.user, by_operator=link.by_operator) else None


@transaction.atomic
def use_reset(token: str, password: str, *, now: datetime) -> User:
    """Raises `DeadLink`."""
    link = open_reset(token, now=now)
    if link is None:
        raise DeadLink
    user = User.objects.select_for_update(no_key=True).get(pk=link.user_id)
    if ResetLink.objects.filter(pk=link.pk, used_at=None).update(used_at=now) != 1:
        raise DeadLink
    user.set_password(password)  # a new hash ends all sessions
    if not link.by_operator:
        user.address_by_hand = False
        vouch_for(user)
    user.save(update_fields=["password", "address_by_hand"])
    user.reset_links.filter(used_at=None).delete()
    record_done(user, "password.reset", now=now, data={"by": "operator" if link.by_operator else "mail"})
    return user


def reset_link_of(token: str) -> str:
    return f"{settings.ENVIRONMENT.public_url}/accounts/password/reset/{token}/"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
