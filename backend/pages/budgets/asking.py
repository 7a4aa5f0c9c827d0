"""Quota requests: the form on the queue page, and the state of the last request."""

from datetime import datetime
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from backend.accounts.acting import Acting
from backend.borders.types import read_count
from backend.clock import database_now
from backend.errors import Invalid, NotFound
from backend.pages.team.team_views import act_and_notify, acting_in, address_of
from backend.pools.models import ResourcePool
from backend.pools.selectors import the_pool
from backend.quota_requests.questions import ask, newest_question


def question_shown(acting: Acting, pool: ResourcePool, *, now: datetime) -> dict[str, Any]:
    """For the queue page."""
    return {"question": newest_question(acting.team, pool, now=now), "may_ask": "jobs:write" in acting.scopes}


@require_POST
@never_cache
@login_required
def request_quota(request: HttpRequest) -> HttpResponse:
    acting = acting_in(request)
    try:
        pool = the_pool(request.POST.get("pool", ""), of=acting.team)
    except NotFound as refusal:
        raise Http404(refusal.detail) from None

    def act() -> str:
        wanted = read_count(request.POST.get("wanted", "").strip())
        if wanted is None:
            raise Invalid("Quota must be a whole number of devices, such as 8.")
        try:
            ask(acting, pool, wanted=wanted, reason=request.POST.get("reason", "").strip(), now=database_now())
        except Invalid as refusal:
            raise Invalid(" ".join(refusal.sentences)) from None
        return "Request sent to the operators. Their answer appears here, and by email if this site sends mail."

    act_and_notify(request, act)
    return redirect(f"{address_of('queue', acting.team)}&pool={pool.pk}")
