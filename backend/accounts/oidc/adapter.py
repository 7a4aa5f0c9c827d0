"""Admission of users who sign in through the OpenID provider.

Invariants:
- an address that the provider has not verified gives no access: no account, no connection to one;
- if the operator set domains, addresses of other domains are refused;
- a first sign-in connects to the account with the same verified address, and to no other: an account that only claims
  the address stays unchanged, and the sign-in is refused;
- an account is connected to one identity of the provider. Another identity with its address is refused until an
  operator disconnects the first: companies give the address of someone who left to someone new;
- a new account needs an invitation to the verified address, or open sign-up; it has no password;
- the provider is configured by the environment alone, not by rows in the database.
"""

from datetime import UTC, datetime
from typing import Any

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import render
from requests import RequestException, Session

from backend.accounts.addresses.claims import claim
from backend.accounts.addresses.proved import is_taken, person_at
from backend.accounts.models import User
from backend.accounts.oidc.asking import note_silence, trusting
from backend.accounts.people.invitations import is_invited
from backend.accounts.people.teams import create_own_team
from backend.accounts.signing_in.events import refused

_UNPROVED = "An account with your address exists but the address is not verified. Reset its password to claim it."

_ANOTHER = (
    "The account with your address belongs to another identity at your provider. "
    "If it is yours, ask the operator of this site to disconnect that identity."
)


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth ships no types
    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        address = _verified_address(sociallogin) or ""
        if not address:
            self._refuse(request, "Your provider has not verified your email address.")
        domains = settings.ENVIRONMENT.oidc_domains
        if domains and address.rpartition("@")[2] not in domains:
            self._refuse(request, "Addresses of this domain cannot sign in.", address)
        if sociallogin.is_existing and not sociallogin.user.is_active:
            self._refuse(request, "This account is closed.", sociallogin.user.email)
        if sociallogin.is_existing and sociallogin.account.pk is None:  # matched by address: the first sign-in
            if _has_identity(sociallogin.user):
                self._refuse(request, _ANOTHER, address)
            claim(sociallogin.user, now=datetime.now(UTC))
        if not sociallogin.is_existing and is_taken(address):
            self._refuse(request, _UNPROVED, address)

    def authenticate_by_email(self, sociallogin: SocialLogin) -> tuple[User, str] | None:
        address = _verified_address(sociallogin)
        user = person_at(address) if address else None
        return (user, user.email) if user else None

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        address = _verified_address(sociallogin)
        invited = address is not None and is_invited(address, now=datetime.now(UTC))
        return invited or bool(settings.ENVIRONMENT.open_sign_up)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        user: User = super().save_user(request, sociallogin, form)
        if not is_invited(user.email, now=datetime.now(UTC)):
            create_own_team(user, f"{user.email.partition('@')[0][:60]}'s team")
        return user

    def list_apps(self, request: HttpRequest, provider: Any = None, client_id: Any = None) -> list[SocialApp]:
        apps: list[SocialApp] = super().list_apps(request, provider=provider, client_id=client_id)
        return [app for app in apps if app.pk is None]

    def get_requests_session(self) -> Session:
        return trusting(super().get_requests_session())

    def on_authentication_error(self, request: HttpRequest, provider: Any, **details: Any) -> None:
        if isinstance(details.get("exception"), RequestException):
            note_silence(details["exception"])

    def _refuse(self, request: HttpRequest, why: str, address: str = "") -> None:
        refused(address, f"OpenID: {why}")
        raise ImmediateHttpResponse(render(request, "socialaccount/refused.html", {"why": why}, status=403))


def _verified_address(sociallogin: SocialLogin) -> str | None:
    return next((each.email.lower() for each in sociallogin.email_addresses if each.verified), None)


def _has_identity(user: User) -> bool:
    """Locks the user until the end of the callback's transaction, so that of two first sign-ins one connects."""
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    issuer = settings.ENVIRONMENT.oidc_issuer
    identities = SocialAccount.objects.filter(user=user, extra_data__id_token__iss__in=(issuer, f"{issuer}/"))
    return bool(identities.exists())
