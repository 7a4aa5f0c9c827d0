"""Password reset: requesting a link, and the page behind the link.

Invariants:
- the response and the number of letters sent do not reveal whether the address has an account;
- on a site without mail the page refers the user to an operator, who creates the link;
- GET changes nothing; the new password is validated as everywhere else.
"""

from django.contrib import messages
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from backend.accounts.letters import has_mail, send_letter
from backend.accounts.people.invitations import EMAIL
from backend.accounts.signing_in import resets
from backend.accounts.signing_in.chains import record_tried
from backend.api.limits.counters import take
from backend.clock import database_now
from backend.errors import Refusal
from backend.pages.account.limits import links_at_most, too_many

ASKED_BY_ADDRESS = ("reset-ask", 20, 3_600)  # requests per network address
ASKED_FOR_ONE = ("reset-ask-for", 4, 3_600)  # letters per mailbox
LINKS = ("reset-link", 60, 60)
_LETTER = """Someone requested a new password for your Laminar account.

To set a new password, open this link. It works once and expires after an hour:

{link}

If this was not you, ignore this message. Your password is unchanged.
"""
_CHANGED = """The password of your Laminar account was changed with a reset link, and every session has ended.

If this was not you, request a reset link on the sign-in page, and contact an operator of the site.
"""
_NOBODY = """Someone requested a new password for a Laminar account with this address.

No account with this address has a password. Did you use another address, or your organization's single sign-on?
"""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def forgotten(request: HttpRequest) -> HttpResponse:
    email = request.POST.get("email", "").strip().lower()
    context = {"has_mail": has_mail(), "email": email}
    if request.method != "POST" or not has_mail():
        return render(request, "account/forgotten.html", context, status=409 if request.method == "POST" else 200)
    if not EMAIL.fullmatch(email) or not email.isprintable() or len(email) > 254:
        wrong = "Enter an email address such as ada@example.org."
        return render(request, "account/forgotten.html", context | {"wrong": wrong}, status=422)
    if too_many(ASKED_BY_ADDRESS):
        return render(request, "429.html", status=429)
    bucket, limit, window_s = ASKED_FOR_ONE
    if take(bucket, email, limit, window_s).allowed:
        _send(email)
    return render(request, "account/forgotten_sent.html", context)


@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@links_at_most(LINKS)
def reset(request: HttpRequest, token: str) -> HttpResponse:
    now = database_now()
    link = resets.open_reset(token, now=now)
    if link is None:
        return render(request, "account/link_dead.html", {"what": "reset"}, status=404)
    if request.method != "POST":
        return render(request, "account/reset.html", {"email": link.user.email})
    password, again = request.POST.get("password", ""), request.POST.get("again", "")
    wrong: list[str] = [] if password == again else ["The passwords do not match."]
    try:
        validate_password(password, link.user)
    except ValidationError as refused:
        wrong += refused.messages
    if wrong:
        return render(request, "account/reset.html", {"email": link.user.email, "wrong": wrong}, status=422)
    try:
        user = resets.use_reset(token, password, now=now)
    except Refusal as refusal:
        return render(request, "account/link_dead.html", {"what": "reset"}, status=refusal.status)
    send_letter(user.email, "Your password for Laminar has changed", _CHANGED)
    messages.success(request, "Password changed, and every session has ended. Sign in with the new password.")
    return redirect("account_login")


def _send(email: str) -> None:
    now, user = database_now(), resets.resettable(email)
    if user is None:
        record_tried(None, "password.reset_asked", now=now)
        send_letter(email, "Your password for Laminar", _NOBODY)
        return
    link = resets.reset_link_of(resets.make_reset(user, now=now))
    send_letter(email, "Your password for Laminar", _LETTER.format(link=link))
