"""The frame of operator pages.

Invariants:
- users who are not operators get a 404;
- a form carries the version that it shows, so the second of two concurrent changes is refused and nothing is lost.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from backend.accounts.operators.acting import Operator
from backend.borders.types import read_count
from backend.errors import Invalid, NotFound, Refusal
from backend.pages.team.team_views import act_and_notify
from backend.pages.undoing import Done
from backend.pages.views import user_of

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
TABS: Final = (
    ("operator_pools", "Pools"),
    ("operator_teams", "Teams"),
    ("operator_people", "People"),
    ("operator_questions", "Quota requests"),
    ("operator_credits", "Credits"),
    ("operator_maintenance", "Maintenance"),
)
_LONGEST: Final = 200


def for_operators(view: Callable[Concatenate[HttpRequest, Operator, P], HttpResponse]) -> View[P]:
    @wraps(view)
    def shown(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        try:
            operator = Operator.acting(user_of(request))
        except NotFound:
            raise Http404 from None
        return view(request, operator, *args, **kwargs)

    guarded: View[P] = never_cache(login_required(shown))  # type: ignore[assignment]  # `wraps` keeps the operator in the type
    return guarded


def act_and_redirect(request: HttpRequest, act: Callable[[], Done | str], page: str, *args: str) -> HttpResponse:
    """Redirects to the page, which shows the outcome: for a refusal all errors, since a form cannot point at them."""

    def act_with_all_errors() -> Done | str:
        try:
            return act()
        except Refusal as refusal:
            if refusal.errors:
                refusal.detail = " ".join(refusal.sentences)
            raise

    act_and_notify(request, act_with_all_errors)
    return redirect(page, *args)


def text_of(request: HttpRequest, name: str) -> str:
    return request.POST.get(name, "").strip()[:_LONGEST]


def version_of(request: HttpRequest) -> str | None:
    """The version that the form showed, as an If-Match. A form without a version is refused."""
    return request.POST.get("version", "")[:_LONGEST] or '""'


def count_of(request: HttpRequest, name: str, label: str) -> int:
    number = optional_count_of(request, name, label)
    if number is None:
        raise Invalid(f"{label}: enter a whole number.")
    return number


def optional_count_of(request: HttpRequest, name: str, label: str) -> int | None:
    typed = text_of(request, name)
    number = read_count(typed) if typed else None
    if typed and number is None:
        raise Invalid(f"{label}: enter a whole number such as 8; got {typed[:40]}.")
    return number


def context_of(**more: Any) -> dict[str, Any]:
    return {"tabs": TABS} | more
