"""API keys: the list, creation and revocation.

Invariants:
- a key's secret is in one response only, the page after the form (`shown_once`), which is not cached;
- admins and owners see and revoke every key of the team, other members their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from math import trunc
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from backend.accounts.acting import Acting
from backend.accounts.keys.making import KeyWish, make_key, revoke_key
from backend.accounts.keys.scopes import DEFAULT_SCOPES, SCOPES
from backend.accounts.people.teams import the_project
from backend.accounts.representations import represent_key
from backend.accounts.selectors import keys_visible_to, projects_of, service_accounts_of
from backend.borders.types import read_count
from backend.clock import database_now
from backend.errors import FieldError, Invalid, Refusal
from backend.pages import curl
from backend.pages.programs.guide import wheel_url
from backend.pages.programs.wheel import wheel_name
from backend.pages.shown_once import shown_at, taken_out
from backend.pages.team.team_views import acting_in, address_of, frame_of

LASTS = (("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("", "no expiration"))
_LONGEST_NAME, _MOST_DEVICES, _MOST_HOURS = 80, 1_000_000, 1_000_000_000
NUM_SHOWN = 300


@dataclass(slots=True, kw_only=True)
class ScopeChoice:
    name: str
    about: str
    chosen: bool


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def keys(request: HttpRequest) -> HttpResponse:
    acting = acting_in(request)
    if request.method != "POST":
        return _show(request, acting, made=_take_new_key(request, acting))
    now = database_now()
    try:
        wish = _parse_wish(acting, request.POST, request.POST.getlist("scopes"), now=now)
        key, text = make_key(acting, wish, account_id=request.POST.get("owner") or None, now=now)
    except Refusal as refusal:
        return _show(request, acting, wrong=refusal.sentences, status=refusal.status)
    return shown_at(request, address_of("keys", acting.team), key.pk, {"text": text})


@require_POST
@never_cache
@login_required
def revoke(request: HttpRequest, key_id: str) -> HttpResponse:
    acting = acting_in(request)
    try:
        revoke_key(acting, key_id, now=database_now())
    except Refusal:
        raise Http404("This key does not exist, or it belongs to another user.") from None
    messages.success(request, "Key revoked. Requests with it are refused.")
    return redirect(address_of("keys", acting.team))


def _take_new_key(request: HttpRequest, acting: Acting) -> dict[str, Any] | None:
    """The key that was just created, with its secret."""
    taken = taken_out(request)
    key = keys_visible_to(acting.user, acting.team, rules=acting.rules).filter(pk=taken.get("made", "")).first()
    return {"key": key, "text": taken["text"]} if key is not None else None


def _parse_wish(acting: Acting, posted: Mapping[str, str], scopes: list[str], *, now: datetime) -> KeyWish:
    """Raises `Invalid` with all errors."""
    errors: list[FieldError] = []

    def wrong(field: str, message: str) -> None:
        errors.append(FieldError(pointer=f"/{field}", code="invalid", message=message))

    name = posted.get("name", "").strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        wrong("name", f"Name: 1 to {_LONGEST_NAME} characters.")
    if not scopes:
        wrong("scopes", "Scopes: choose at least one.")
    days = posted.get("lasts", "90")
    if days not in dict(LASTS):
        wrong("lasts", "Expiration: choose one of the options.")
    devices = _number(posted.get("max_devices", ""), most=_MOST_DEVICES)
    if devices is not None and (devices < 1 or devices != devices.to_integral_value()):
        wrong("max_devices", "Max. devices at once: a whole number above 0, or empty.")
    hours = _number(posted.get("max_gpu_hours", ""), most=_MOST_HOURS)
    if hours is not None and (hours <= 0 or hours != round(hours, 2)):
        wrong("max_gpu_hours", "Max. GPU-hours: a number above 0 with at most two decimals, or empty.")
    if errors:
        raise Invalid("The key is not valid.", errors=errors)
    project = posted.get("project", "")
    return KeyWish(
        name=name,
        scopes=scopes,
        expires_at=now + timedelta(days=read_count(days) or 0) if days else None,
        project=the_project(acting.team, project) if project else None,
        max_devices=trunc(devices) if devices is not None else None,
        max_gpu_hours=hours,
    )


def _number(text: str, *, most: int) -> Decimal | None:
    """None for empty text; -1, which every rule refuses, for an invalid or too large number."""
    if not text.strip():
        return None
    try:
        value = Decimal(text.strip()[:30])
    except InvalidOperation:
        return Decimal(-1)
    return value if value.is_finite() and value <= most else Decimal(-1)


def _show(
    request: HttpRequest,
    acting: Acting,
    *,
    made: dict[str, Any] | None = None,
    wrong: list[str] | None = None,
    status: int = 200,
) -> HttpResponse:
    now = database_now()
    keys = keys_visible_to(acting.user, acting.team, rules=acting.rules)[:NUM_SHOWN]
    chosen = request.POST.getlist("scopes") if wrong else DEFAULT_SCOPES
    context = frame_of(acting) | {
        "keys": [(represent_key(key, now=now), acting.rules or key.owner_id == acting.user.pk) for key in keys],
        "scopes": [
            ScopeChoice(name=name, about=about, chosen=name in chosen)
            for name, about in SCOPES.items()
            if name in acting.scopes
        ],
        "lasts": LASTS,
        "service_accounts": list(service_accounts_of(acting.team)) if acting.rules else [],
        "projects": list(projects_of(acting.team)),
        "typed": request.POST if wrong else {"lasts": "90"},
        "made": made,
        "wrong": wrong or [],
        "curl": curl.get("/api-keys"),
        "wheel_url": wheel_url(),
        "wheel_name": wheel_name(),
        "now": now,
    }
    return render(request, "pages/team/keys.html", context, status=status)
