"""Users, for operators: the list, closing and reopening accounts, and password links."""

from typing import Any

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.operators.acting import Operator
from backend.accounts.operators.people import (
    close_account,
    disconnect_identity,
    end_sessions,
    link_to_reset,
    open_account,
)
from backend.accounts.operators.people import people as people_found
from backend.clock import database_now
from backend.errors import Invalid, Refusal
from backend.pages.operator.frame import act_and_redirect, context_of, for_operators, text_of
from backend.pages.shown_once import shown_at, taken_out

PEOPLE_A_PAGE = 50


@require_safe
@for_operators
def people(request: HttpRequest, operator: Operator) -> HttpResponse:
    return _show(request, operator, made=taken_out(request))


@require_POST
@for_operators
def change(request: HttpRequest, operator: Operator, user_id: str) -> HttpResponse:
    """The pressed button names the action: close, open, end or disconnect."""

    def act() -> str:
        now = database_now()
        match text_of(request, "act"):
            case "close":
                person = close_account(operator, user_id, now=now)
                return f"The account of {person.email} is closed. Sessions ended, keys are refused, jobs keep running."
            case "open":
                return f"The account of {open_account(operator, user_id, now=now).email} is open again."
            case "end":
                person, number = end_sessions(operator, user_id, now=now)
                return f"{number} session{'' if number == 1 else 's'} of {person.email} ended."
            case "disconnect":
                person = disconnect_identity(operator, user_id, now=now)
                return f"The identity of {person.email} is disconnected. The next OpenID sign-in connects again."
            case _:
                raise Invalid("Choose an action: close, open, end or disconnect.")

    return act_and_redirect(request, act, "operator_people")


@require_POST
@for_operators
def reset(request: HttpRequest, operator: Operator, user_id: str) -> HttpResponse:
    """Redirects to the page that shows the link once."""
    try:
        person, link = link_to_reset(operator, user_id, now=database_now())
    except Refusal as refusal:
        if refusal.status == 404:
            raise Http404(refusal.detail) from None
        return _show(request, operator, wrong=refusal.detail, status=refusal.status)
    secrets = {"email": person.email, "link": link}
    return shown_at(request, reverse("operator_people"), user_id, secrets)


def _show(
    request: HttpRequest, operator: Operator, *, made: dict[str, Any] | None = None, wrong: str = "", status: int = 200
) -> HttpResponse:
    query = "".join(each for each in request.GET.get("q", "") if each.isprintable()).strip()[:120]
    page = Paginator(people_found(query), PEOPLE_A_PAGE).get_page(request.GET.get("page"))
    context = context_of(page=page, query=query, made=made, wrong=wrong, me=operator.user.pk, now=database_now())
    return render(request, "pages/operator/people.html", context, status=status)
