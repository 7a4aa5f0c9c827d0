"""The user's e-mail address: the page, a requested change, and the two links that a request sends.

Invariants:
- a request needs the password again, and its response does not reveal whether another account has the new address;
- GET changes nothing, so a mail program that opens links moves no account;
- the confirming link works only for the signed-in user; the cancelling link needs no sign-in.
"""

from allauth.account.internal.flows.reauthentication import raise_if_reauthentication_required
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.accounts.addresses import changes
from backend.accounts.addresses.change_letters import mail_change_done, mail_change_request
from backend.accounts.letters import has_mail
from backend.accounts.models import User
from backend.accounts.people.invitations import EMAIL
from backend.api.limits.counters import take
from backend.clock import database_now
from backend.errors import Refusal
from backend.pages.account.limits import links_at_most
from backend.pages.views import user_of

WISHES = ("address-wish", 5, 3_600)  # per user; each sends two letters
LINKS = ("address-link", 60, 60)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def address(request: HttpRequest) -> HttpResponse:
    user, now = user_of(request), database_now()
    if request.method != "POST":
        return _show(request, user)
    raise_if_reauthentication_required(request, app="allauth.account")
    if "withdraw" in request.POST:
        changes.withdraw_change(user, now=now)
        messages.success(request, "Your address is unchanged.")
        return redirect("account_email")
    email = request.POST.get("email", "").strip()
    if not has_mail():
        return _show(request, user, status=409)
    if not EMAIL.fullmatch(email) or not email.isprintable() or len(email) > 254:
        return _show(request, user, wrong="Enter an email address such as ada@example.org.", status=422)
    bucket, limit, window_s = WISHES
    if not take(bucket, str(user.pk), limit, window_s).allowed:
        return _show(request, user, wrong="Too many requests. Try again in an hour.", status=429)
    try:
        sent = mail_change_request(changes.request_change(user, email, now=now))
    except Refusal as refusal:
        return _show(request, user, wrong=refusal.detail, status=refusal.status)
    if not sent:
        return _show(request, user, wrong="The mail server did not accept our messages. Try again later.", status=503)
    messages.success(request, f"We sent a confirmation link to {email.lower()} and a notice to {user.email}.")
    return redirect("account_email")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
@links_at_most(LINKS)
def confirm(request: HttpRequest, token: str) -> HttpResponse:
    user, now = user_of(request), database_now()
    change = changes.change_to_confirm(token, user, now=now)
    if change is None:
        return render(request, "account/link_dead.html", {"what": "address"}, status=404)
    if request.method != "POST":
        return render(request, "account/address_confirm.html", {"change": change})
    try:
        done = changes.confirm_change(token, user, now=now)
    except Refusal as refusal:
        return render(request, "account/link_dead.html", {"what": "address"}, status=refusal.status)
    mail_change_done(done)
    messages.success(request, f"Address changed. Sign in with {done.after} from now on.")
    return redirect("account_email")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@links_at_most(LINKS)
def cancel(request: HttpRequest, token: str) -> HttpResponse:
    now = database_now()
    change = changes.change_to_cancel(token, now=now)
    if change is None:
        return render(request, "account/link_dead.html", {"what": "cancel"}, status=404)
    if request.method != "POST":
        return render(request, "account/address_cancel.html", {"change": change})
    try:
        user = changes.cancel_change(token, now=now)
    except Refusal as refusal:
        return render(request, "account/link_dead.html", {"what": "cancel"}, status=refusal.status)
    context = {"email": user.email, "is_back": user.email == change.before, "before": change.before}
    return render(request, "account/address_cancelled.html", context)


def _show(request: HttpRequest, user: User, *, wrong: str = "", status: int = 200) -> HttpResponse:
    context = {
        "change": changes.open_change(user, now=database_now()),
        "has_mail": has_mail(),
        "wrong": wrong,
        "typed": request.POST.get("email", "") if wrong else "",
    }
    return render(request, "account/address.html", context, status=status)
