"""The confirmation page and the execution of bulk actions.

Invariants:
- GET changes nothing and needs no script: the list is a form whose buttons lead here with the jobs in the URL;
- the list shows why the action failed for a job; the other jobs are not affected;
- one rendering of the confirmation creates at most one retry of each job.
"""

from collections import Counter
from functools import cache
from typing import Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from backend.accounts.acting import Acting
from backend.accounts.models import User
from backend.clock import database_now
from backend.errors import Refusal
from backend.jobs.models import Job
from backend.jobs.selectors import jobs_visible_to
from backend.pages import curl
from backend.pages.job.control_views import refusal_text
from backend.pages.job.making import FORM, NOT_A_FORM, new_token
from backend.pages.jobs.asked import Asked
from backend.pages.jobs.several import MOST_AT_ONCE, SEVERAL, SeveralAct, chosen_of, hindrance_of, lost_together
from backend.pages.views import user_of

_BY_VERB: Final = {each.verb: each for each in SEVERAL}
NONE_CHOSEN: Final = "Select one or more jobs first, then choose an action."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def several_jobs(request: HttpRequest) -> HttpResponse:
    user = user_of(request)
    sent = request.POST if request.method == "POST" else request.GET
    act, asked = _BY_VERB.get(sent.get("act", "")), Asked.of(sent)
    if act is None:
        raise Http404("This action does not exist for several jobs.")
    back = reverse("jobs") + asked.address()
    jobs = _jobs_of(user, sent)
    if not jobs:
        messages.warning(request, NONE_CHOSEN)
        return redirect(back)
    if request.method == "POST":
        if request.content_type != FORM:
            return HttpResponse(NOT_A_FORM, status=415)
        _do(request, act, jobs, user)
        return redirect(back)
    chosen = chosen_of(act, jobs, lambda job: Acting.person(user, job.team))
    doable = [each for each in chosen if not each.hindrance]
    context = {
        "act": act,
        "chosen": chosen,
        "doable": doable,
        "together": list(lost_together(act, chosen)),
        "asked": asked,
        "back": back,
        "token": new_token(),
        "curl": curl.post("/jobs:cancel", {"ids": [each.job.pk for each in doable]}) if act.verb == "cancel" else "",
    }
    return render(request, "pages/jobs/several.html", context)


def _jobs_of(user: User, sent: QueryDict) -> list[Job]:
    """In list order. Jobs of other teams are left out."""
    ids = [each for each in sent.getlist("job") if each.isidentifier()]
    return list(jobs_visible_to(user).filter(pk__in=ids)[:MOST_AT_ONCE])


def _do(request: HttpRequest, act: SeveralAct, jobs: list[Job], user: User) -> None:
    acting_of = cache(lambda team: Acting.person(user, team))
    done: Counter[str] = Counter()
    refused: list[tuple[Job, str]] = []
    for job in jobs:
        who = acting_of(job.team)
        hindrance = hindrance_of(act, job, who)
        if hindrance or who is None:
            refused.append((job, hindrance))
            continue
        try:
            done[act.do(request, job, who, database_now())] += 1
        except Refusal as refusal:
            refused.append((job, refusal_text(refusal)))
    for outcome, num in done.items():
        messages.success(request, f"{num:,} job{'' if num == 1 else 's'}: {outcome}")
    for job, why in refused:
        messages.warning(request, f"{job.name}: {why}")
