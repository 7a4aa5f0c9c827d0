"""Accepting an invitation: sign up or sign in, then join.

Invariants:
- GET changes nothing, so a mail program that opens links accepts nothing;
- a new account always has the invited address, whatever the form sends; a user with another address cannot join;
- tokens have 256 bits, and attempts are rate-limited all the same;
- the page does not reveal whether the invited address has an account, since the sender may hold the link. Only an
  attempt to create the account reveals it: by creating it, or with an audit entry that the account's owner sees.
"""

from datetime import datetime
from urllib.parse import quote

from allauth.account.utils import perform_login
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from backend.accounts.models import Invitation, User
from backend.accounts.people.invitations import AddressHasAccount, join, open_invitation, sign_up
from backend.accounts.signing_in.events import refused
from backend.clock import database_now
from backend.errors import Refusal
from backend.pages.account.limits import links_at_most
from backend.pages.team.team_views import address_of

TRIES = ("invitation", 60, 60)


@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@links_at_most(TRIES)
def accept(request: HttpRequest, token: str) -> HttpResponse:
    now = database_now()
    invitation = open_invitation(token, now=now)
    if invitation is None:
        return render(request, "pages/team/invitation_closed.html", status=404)
    if request.method != "POST":
        return _show(request, invitation)
    try:
        if isinstance(request.user, User):
            join(token, request.user, now=now)
            messages.success(request, f"Welcome to {invitation.team.name}.")
            return redirect(address_of("members", invitation.team))
        return _sign_up(request, invitation, token, now=now)
    except AddressHasAccount as refusal:
        refused(invitation.email, "an invitation's link was used to make a second account")
        return _show(request, invitation, wrong=[refusal.detail], status=refusal.status)
    except Refusal as refusal:
        return _show(request, invitation, wrong=[refusal.detail], status=refusal.status)


def _sign_up(request: HttpRequest, invitation: Invitation, token: str, *, now: datetime) -> HttpResponse:
    password, again = request.POST.get("password", ""), request.POST.get("again", "")
    wrong: list[str] = [] if password == again else ["The passwords do not match."]
    try:
        validate_password(password, User(email=invitation.email))
    except ValidationError as refused:
        wrong += refused.messages
    if wrong:
        return _show(request, invitation, wrong=wrong, status=422)
    user = sign_up(token, password, now=now)
    messages.success(request, f"Welcome to {invitation.team.name}.")
    answer: HttpResponse = perform_login(request, user, redirect_url=reverse("jobs"))
    return answer


def _show(
    request: HttpRequest, invitation: Invitation, *, wrong: list[str] | None = None, status: int = 200
) -> HttpResponse:
    here = quote(request.path)
    context = {
        "invitation": invitation,
        "is_theirs": request.user.is_authenticated and request.user.email.lower() == invitation.email,
        "sign_in": f"{reverse('account_login')}?next={here}",
        "sso": f"{reverse('openid_connect_login', args=['sso'])}?next={here}",
        "has_sso": bool(settings.ENVIRONMENT.oidc_issuer),
        "sso_name": settings.ENVIRONMENT.oidc_name,
        "wrong": wrong or [],
    }
    return render(request, "pages/team/invitation.html", context, status=status)
