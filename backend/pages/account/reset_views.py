"""A forgotten password: asking for a link, and the page behind it.

Invariants:
- whoever asks is answered the same, whether the address has an account or not, after as many letters;
- where no mail goes out the page says so, and whose hand the link comes from;
- nothing happens on GET; the new password is judged as at every other place that takes one.
"""

from django.contrib import messages
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from backend.accounts.invitations import EMAIL
from backend.accounts.letters import has_mail, send_letter
from backend.accounts.signing_in import resets
from backend.accounts.signing_in.chains import record_tried
from backend.api.counters import take
from backend.clock import database_now
from backend.errors import Refusal
from backend.pages.account.limits import links_at_most, too_many

ASKED_BY_ADDRESS = ("reset-ask", 20, 3_600)  # of one network address
ASKED_FOR_ONE = ("reset-ask-for", 4, 3_600)  # letters that one mailbox gets
LINKS = ("reset-link", 60, 60)
_LETTER = """Somebody, we hope you, has forgotten the password of your Laminar account.

This link sets a new one. It works once, for an hour:

{link}

If it was not you, do nothing: the password stays as it is.
"""
_CHANGED = """The password of your Laminar account was set anew with a link, and every session has ended.

If that was not you, ask for a link yourself, on the sign-in page, and tell whoever runs the site.
"""
_NOBODY = """Somebody, we hope you, has forgotten the password of a Laminar account with this address.

There is none that one could set a password for. Did you use another address, or your organisation's single sign-on?
"""


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
def forgotten(request: HttpRequest) -> HttpResponse:
    email = request.POST.get("email", "").strip().lower()
    context = {"has_mail": has_mail(), "email": email}
    if request.method != "POST" or not has_mail():
        return render(request, "account/forgotten.html", context, status=409 if request.method == "POST" else 200)
    if not EMAIL.fullmatch(email) or not email.isprintable() or len(email) > 254:
        wrong = "Write an e-mail address such as ada@example.org."
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
    wrong: list[str] = [] if password == again else ["The two passwords are not the same."]
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
    messages.success(request, "Your new password is set, and every session has ended. Sign in with it.")
    return redirect("account_login")


def _send(email: str) -> None:
    now, user = database_now(), resets.resettable(email)
    if user is None:
        record_tried(None, "password.reset_asked", now=now)
        send_letter(email, "Your password for Laminar", _NOBODY)
        return
    link = resets.reset_link_of(resets.make_reset(user, now=now))
    send_letter(email, "Your password for Laminar", _LETTER.format(link=link))
