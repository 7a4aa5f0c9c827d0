"""Signed-in browsers: recorded on the first request, updated on a user's requests, ended at their limits.

Invariants:
- a session unused for `idle_limit`, or older than `whole_limit`, gives no access: the middleware checks this before
  every page, and sockets make the same check;
- requests that a page's script makes by itself neither prolong a session nor end its idleness;
- a row is deleted with its session, however that ends; a new key of the same session keeps its beginning.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session
from django.db.models import DateTimeField, Func, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from backend.accounts.models import SignedIn, User
from backend.borders.proxies import client_ip
from backend.clock import database_now

_SEEN_WRITTEN_EVERY: Final = timedelta(minutes=1)  # else every page would write a row
_LONGEST_WORDS: Final = 200


def idle_limit() -> timedelta:
    return timedelta(hours=settings.ENVIRONMENT.session_idle_hours)


def whole_limit() -> timedelta:
    return timedelta(days=settings.ENVIRONMENT.session_days)


def is_over(row: SignedIn, *, now: datetime) -> bool:
    return row.seen_at < now - idle_limit() or row.began_at < now - whole_limit()


def over_among(keys: Collection[str]) -> set[str]:
    """Those at their limits. A session without a request since this table was introduced has no row, and is not."""
    return {row.pk for row in _with_time().filter(pk__in=keys) if is_over(row, now=row.now)}


def follow_sessions(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Middleware. After authentication, before every page."""

    def middleware(request: HttpRequest) -> HttpResponseBase:
        key = request.session.session_key
        row = _follow(request, key) if key and request.user.is_authenticated else None
        response = get_response(request)
        if request.session.session_key != key and request.user.is_authenticated:
            _note(request, began_at=row.began_at if row and row.user_id == request.user.pk else None)
        return response

    return middleware


def _follow(request: HttpRequest, key: str) -> SignedIn | None:
    row = _with_time().filter(pk=key).first()
    if row is None:
        return _note(request)
    signed_in: SignedIn = row
    now: datetime = row.now
    if is_over(row, now=now):
        request.session.flush()
        request.user = AnonymousUser()
        return None
    if _is_by_user(request) and signed_in.seen_at < now - _SEEN_WRITTEN_EVERY:
        SignedIn.objects.filter(pk=key).update(seen_at=now, ip=_ip(request))
    return signed_in


def _note(request: HttpRequest, *, began_at: datetime | None = None) -> SignedIn | None:
    now, key = database_now(), request.session.session_key
    if not isinstance(request.user, User) or not Session.objects.filter(pk=key).exists():
        return None
    words = request.headers.get("User-Agent", "")[:_LONGEST_WORDS].replace("\0", "")
    row = {"user": request.user, "began_at": began_at or now, "seen_at": now, "ip": _ip(request), "user_agent": words}
    return SignedIn.objects.get_or_create(pk=key, defaults=row)[0]


def _is_by_user(request: HttpRequest) -> bool:
    """Browsers mark requests of scripts in Sec-Fetch-Dest, which a script cannot override."""
    return request.method != "GET" or request.headers.get("Sec-Fetch-Dest") != "empty"


def _ip(request: HttpRequest) -> str:
    return client_ip(request, trusted=settings.ENVIRONMENT.trusted_proxies)


def _with_time() -> "QuerySet[Any]":
    """Rows annotated with the query's time, as `now`."""
    return SignedIn.objects.annotate(now=Func(function="clock_timestamp", output_field=DateTimeField()))
