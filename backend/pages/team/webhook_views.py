"""Webhooks: a team's endpoints, their messages, and the deliveries.

Invariants:
- the signing secret is in one response only, the page after the form (`shown_once`), which is not cached;
- seeing a webhook requires permission to change it: its URL is often a secret, so viewers and members see none, as
  in the API (scope `webhooks:write`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from backend.accounts.acting import Acting
from backend.api.pagination import page_after
from backend.clock import database_now
from backend.errors import FieldError, Invalid, NotFound, Refusal
from backend.jobs.models import JobState
from backend.pages import curl
from backend.pages.shown_once import MADE, shown_at, taken_out
from backend.pages.team.team_views import act_and_notify, acting_in, address_of, frame_of
from backend.pages.undoing import Done, UndoForm
from backend.webhooks import services
from backend.webhooks.models import DeliveryState, WebhookEndpoint
from backend.webhooks.selectors import deliveries_of, endpoints_of, the_endpoint

EVERYTHING: Final = "*"
OFFERED: Final = (
    *(f"job.{state}" for state in JobState.values),
    "job.submitted",
    "job.checkpoint_saved",
    "job.alarm_raised",
    "job.alarm_ended",
    "job.evaluated",
    "job.fault_detected",
)
DELIVERIES_A_PAGE: Final = 30
_SHORTEST_URL, _LONGEST_URL, _LONGEST_ABOUT = 9, 1_000, 200
_EVENT = re.compile(r"job\.(\*|[a-z_]{1,40})", re.ASCII)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def webhooks(request: HttpRequest) -> HttpResponse:
    """POST creates a webhook; the next page shows its secret."""
    acting = _ruling(request)
    if request.method != "POST":
        return _show_all(request, acting)
    try:
        url, about, events = _typed(request.POST, request.POST.getlist("events"))
        endpoint, secret = services.create_endpoint(
            acting.team, url=url, events=events, description=about, actor=acting.name, now=database_now()
        )
    except Refusal as refusal:
        return _show_all(request, acting, wrong=refusal.sentences, status=refusal.status)
    return shown_at(request, _address_of(acting, endpoint.pk), endpoint.pk, {"secret": secret, "is_new": "yes"})


@require_safe
@never_cache
@login_required
def webhook(request: HttpRequest, webhook_id: str) -> HttpResponse:
    acting = _ruling(request)
    return _show_one(request, acting, _endpoint(acting, webhook_id))


@require_POST
@never_cache
@login_required
def renew_secret(request: HttpRequest, webhook_id: str) -> HttpResponse:
    """Both secrets sign for a day; the next page shows the new one."""
    acting = _ruling(request)
    _endpoint(acting, webhook_id)
    endpoint, secret = services.rotate_secret(acting.team, webhook_id, actor=acting.name, now=database_now())
    return shown_at(request, _address_of(acting, endpoint.pk), endpoint.pk, {"secret": secret})


@require_POST
@never_cache
@login_required
def change(request: HttpRequest, webhook_id: str) -> HttpResponse:
    """The pressed button names the action: `act` is test, enable, disable or delete."""
    acting, now = _ruling(request), database_now()
    act, before = request.POST.get("act", ""), _endpoint(acting, webhook_id)

    def done() -> Done | str:
        match act:
            case "test":
                services.send_test(acting.team, webhook_id, actor=acting.name, now=now)
                return "Test message sent. The response appears below within seconds."
            case "enable" | "disable":
                services.change_endpoint(
                    acting.team, webhook_id, url=None, events=None, description=None, enabled=act == "enable",
                    if_match=None, actor=acting.name, now=now,
                )  # fmt: skip
                message = (
                    "Webhook enabled."
                    if act == "enable"
                    else "Webhook disabled. No messages are sent until you enable it."
                )
                return Done(message, _back_from(acting, before, is_on=act == "enable"))
            case "delete":
                services.delete_endpoint(acting.team, webhook_id, if_match=None, actor=acting.name, now=now)
                return "Webhook and deliveries deleted."
            case _:
                raise Invalid("Choose an action for the webhook.")

    return _done(request, acting, webhook_id, done, is_gone=act == "delete")


@require_POST
@never_cache
@login_required
def redeliver(request: HttpRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
    acting = _ruling(request)

    def done() -> str:
        services.redeliver(acting.team, webhook_id, delivery_id, actor=acting.name, now=database_now())
        return "Redelivery started, with all attempts."

    return _done(request, acting, webhook_id, done)


def _back_from(acting: Acting, before: WebhookEndpoint, *, is_on: bool) -> UndoForm | None:
    """None for a webhook that was disabled because its endpoint did not respond: Undo would not restore that state."""
    was_on = before.disabled_at is None
    if was_on == is_on or before.disabled_reason not in ("", services.BY_ITS_TEAM):
        return None
    address = f"{reverse('change_webhook', args=[before.pk])}?team={acting.team.pk}"
    return UndoForm(address=address, fields={"act": "enable" if was_on else "disable"})


def _ruling(request: HttpRequest) -> Acting:
    acting = acting_in(request)
    if "webhooks:write" not in acting.scopes:
        raise PermissionDenied(
            "Only team admins and owners can view webhooks, because a webhook's URL may be a secret."
        )
    return acting


def _endpoint(acting: Acting, webhook_id: str) -> WebhookEndpoint:
    try:
        return the_endpoint(acting.team, webhook_id)
    except NotFound as refusal:
        raise Http404(refusal.detail) from None


def _typed(posted: Mapping[str, str], chosen: list[str]) -> tuple[str, str, list[str]]:
    """URL, description and events. Raises `Invalid` with all errors."""
    url, about = posted.get("url", "").strip(), posted.get("description", "").strip()
    events = [EVERYTHING] if posted.get("everything") == "yes" else list(dict.fromkeys(chosen))
    errors = []
    if not _SHORTEST_URL <= len(url) <= _LONGEST_URL or not url.isprintable():
        errors.append(FieldError(pointer="/url", code="url", message="Enter a URL such as https://example.org."))
    if len(about) > _LONGEST_ABOUT or not about.isprintable():
        message = f"Description: at most {_LONGEST_ABOUT} characters, on one line."
        errors.append(FieldError(pointer="/description", code="length", message=message))
    if not events or (events != [EVERYTHING] and not all(_EVENT.fullmatch(each) for each in events)):
        errors.append(FieldError(pointer="/events", code="events", message="Choose at least one event."))
    if errors:
        raise Invalid("The webhook is not valid.", errors=errors)
    return url, about, events


def _done(
    request: HttpRequest, acting: Acting, webhook_id: str, act: Callable[[], Done | str], *, is_gone: bool = False
) -> HttpResponse:
    _endpoint(acting, webhook_id)
    if act_and_notify(request, act) and is_gone:
        return redirect(address_of("webhooks", acting.team))
    return redirect(_address_of(acting, webhook_id))


def _address_of(acting: Acting, webhook_id: str) -> str:
    return f"{reverse('webhook', args=[webhook_id])}?team={acting.team.pk}"


def _show_all(
    request: HttpRequest, acting: Acting, *, wrong: list[str] | None = None, status: int = 200
) -> HttpResponse:
    context = frame_of(acting) | {
        "endpoints": list(endpoints_of(acting.team)),
        "most": services.MOST_PER_TEAM,
        "offered": OFFERED,
        "chosen": request.POST.getlist("events"),
        "wants_everything": request.POST.get("everything") == "yes" if wrong else True,
        "typed": request.POST if wrong else {},
        "wrong": wrong or [],
        "curl": curl.get("/webhooks"),
        "now": database_now(),
    }
    return render(request, "pages/team/webhooks.html", context, status=status)


def _show_one(request: HttpRequest, acting: Acting, endpoint: WebhookEndpoint) -> HttpResponse:
    taken = taken_out(request) if request.GET.get(MADE) == endpoint.pk else {}
    state = request.GET.get("state", "")
    rows = deliveries_of(endpoint)
    if state in DeliveryState.values:
        rows = rows.filter(state=state)
    else:
        state = ""
    try:
        shown, following = page_after(rows, cursor=request.GET.get("cursor") or None, limit=DELIVERIES_A_PAGE)
    except Invalid as refusal:
        raise Http404(refusal.detail) from None
    context: dict[str, Any] = frame_of(acting) | {
        "endpoint": endpoint,
        "deliveries": shown,
        "following": following,
        "is_first": not request.GET.get("cursor"),
        "state": state,
        "states": DeliveryState.values,
        "secret": taken.get("secret", ""),
        "is_new": "is_new" in taken,
        "is_waiting": any(each.state == DeliveryState.PENDING for each in shown),
        "curl": curl.get(f"/webhooks/{endpoint.pk}/deliveries"),
        "now": database_now(),
    }
    is_part = "part" in request.GET  # an open page fetches this while a delivery is pending
    return render(request, "pages/team/_deliveries.html" if is_part else "pages/team/webhook.html", context)
