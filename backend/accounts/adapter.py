"""Rules for allauth: who may sign up, and how many sign-in attempts are allowed.

Invariants:
- sign-up needs an invitation, unless the operator opened it; with open sign-up the address is verified by mail first;
- attempts are counted before the password is checked, in one statement each (`api.limits.counters`), by address, by
  account and by both: exact across processes; without Postgres every sign-in fails;
- a right password resets the counter of its account and address, and is not counted for the account: signing in often
  locks no user out. Guesses from other addresses stay counted, and so do all attempts of an address;
- a wrong password and an unknown account get the same response.
"""

import logging
from collections.abc import Mapping
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from backend.accounts.letters import has_mail
from backend.accounts.models import User
from backend.accounts.people.teams import create_own_team
from backend.accounts.signing_in.events import refused
from backend.api.limits.counters import give_back, reset, take
from backend.api.request_context import stranger
from backend.borders.proxies import client_ip

log = logging.getLogger(__name__)

# (bucket, limit, seconds). A user with a forgotten password tries three or four; a bot tries thousands.
PER_ACCOUNT_AND_ADDRESS = ("sign-in", 6, 300)
PER_ACCOUNT = ("sign-in-account", 30, 300)  # wider, or a stranger could lock a user out
PER_ADDRESS = ("sign-in-address", 60, 60)  # covers an office behind one address on Monday morning


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth ships no types
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.ENVIRONMENT.open_sign_up)

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """A user who signs up without an invitation gets a team of their own."""
        saved: User = super().save_user(request, user, form, commit=commit)
        if commit:
            create_own_team(saved, f"{saved.email.partition('@')[0][:60]}'s team")
        return saved

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        refused(user.email, "the account is closed")
        response: HttpResponse = super().respond_user_inactive(request, user)
        return response

    def respond_email_verification_sent(self, request: HttpRequest, user: User) -> HttpResponse:
        if user is not None:
            refused(user.email, "the address is not proved")
        response: HttpResponse = super().respond_email_verification_sent(request, user)
        return response

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Logs a mail that the server refuses instead of raising: delivery failures must not fail the request."""
        if not has_mail():
            return
        try:
            super().send_mail(template_prefix, email, context)
        except OSError as error:
            log.warning("mail could not be sent template=%s error=%s", template_prefix, type(error).__name__)

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_ip(request, trusted=settings.ENVIRONMENT.trusted_proxies) or "unknown"

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            account = _account_in(credentials)
            reset(PER_ACCOUNT_AND_ADDRESS[0], f"{account} {stranger()}", *PER_ACCOUNT_AND_ADDRESS[1:])
            give_back(PER_ACCOUNT[0], account, *PER_ACCOUNT[1:])
        return user

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        account, address = _account_in(credentials), stranger()
        counted = (
            (PER_ADDRESS, address),
            (PER_ACCOUNT_AND_ADDRESS, f"{account} {address}"),
            (PER_ACCOUNT, account),
        )
        for (bucket, limit, window_s), key in counted:
            if not take(bucket, key, limit, window_s).allowed:
                refused(account, "too many attempts")
                raise self.validation_error("too_many_login_attempts")


def _account_in(credentials: Mapping[str, Any]) -> str:
    return str(credentials.get("email") or credentials.get("username") or "").strip().lower()
