"""Writes sign-in events to the audit log, from the signals of allauth and Django.

Invariants:
- every sign-in has an entry; if the entry cannot be written, the sign-in fails;
- an entry contains no password, code or token, and no typed address without an account, which may be a mistyped
  password.
"""

from typing import Any

from allauth.account import signals as account
from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa import signals as mfa
from django.contrib.auth.signals import user_logged_out, user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest

from backend.accounts.models import User
from backend.accounts.sessions.devices import device_of
from backend.accounts.signing_in.chains import record_done, record_tried
from backend.clock import database_now


def refused(email: str, why: str) -> None:
    """Records a sign-in that was refused for a reason other than the credentials."""
    record_tried(_user_at(email), "sign_in.refused", now=database_now(), data={"why": why})


@receiver(account.user_logged_in, dispatch_uid="audit_signed_in")
def _signed_in(request: HttpRequest, user: User, **_: Any) -> None:
    used = [str(record.get("type") or record["method"]) for record in get_authentication_records(request, user)]
    data = {"with": used, "device": device_of(request.headers.get("User-Agent", "")[:200])}
    try:
        record_done(user, "user.signed_in", now=database_now(), data=data)
    except Exception:
        request.session.flush()
        raise


@receiver(user_logged_out, dispatch_uid="audit_signed_out")
def _signed_out(user: User | None, **_: Any) -> None:
    if user is not None:
        record_done(user, "user.signed_out", now=database_now())


@receiver(user_login_failed, dispatch_uid="audit_sign_in_failed")
def _failed(credentials: dict[str, Any], **_: Any) -> None:
    person = _user_at(str(credentials.get("email") or credentials.get("username") or ""))
    record_tried(person, "sign_in.failed", now=database_now())


@receiver(account.user_signed_up, dispatch_uid="audit_signed_up")
def _signed_up(user: User, **_: Any) -> None:
    record_done(user, "user.signed_up", now=database_now(), data={"address": user.email})


@receiver(account.email_confirmed, dispatch_uid="audit_address_proved")
def _proved(email_address: Any, **_: Any) -> None:
    data = {"address": email_address.email, "by": "mail"}
    record_done(email_address.user, "address.proved", now=database_now(), data=data)


@receiver([account.password_changed, account.password_set], dispatch_uid="audit_password_changed")
def _password_changed(user: User, **_: Any) -> None:
    user.reset_links.filter(used_at=None).delete()
    record_done(user, "password.changed", now=database_now())


@receiver(mfa.authenticator_added, dispatch_uid="audit_factor_added")
def _factor_added(user: User, authenticator: Any, **_: Any) -> None:
    record_done(user, "second_factor.added", now=database_now(), data={"type": authenticator.type})


@receiver(mfa.authenticator_removed, dispatch_uid="audit_factor_removed")
def _factor_removed(user: User, authenticator: Any, **_: Any) -> None:
    record_done(user, "second_factor.removed", now=database_now(), data={"type": authenticator.type})


@receiver(mfa.authenticator_reset, dispatch_uid="audit_factor_renewed")
def _factor_renewed(user: User, authenticator: Any, **_: Any) -> None:
    record_done(user, "second_factor.renewed", now=database_now(), data={"type": authenticator.type})


@receiver(mfa.authenticator_used, dispatch_uid="audit_factor_used")
def _factor_used(user: User, authenticator: Any, **_: Any) -> None:
    record_done(user, "second_factor.used", now=database_now(), data={"type": authenticator.type})


@receiver(mfa.authentication_failed, dispatch_uid="audit_factor_failed")
def _factor_failed(user: User, **_: Any) -> None:
    record_tried(user, "second_factor.failed", now=database_now())


def _user_at(email: str) -> User | None:
    return User.objects.filter(email=email.strip().lower(), is_service=False).first()
