"""Teams' quota requests, which operators approve, decline, or approve with another number."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from backend.accounts.operators.acting import Operator
from backend.api.etags import etag_of
from backend.clock import database_now
from backend.errors import Invalid
from backend.pages.operator.frame import act_and_redirect, context_of, count_of, for_operators, version_of
from backend.pools.models import TeamQuota
from backend.quota_requests.questions import answer, open_questions


@require_safe
@for_operators
def questions(request: HttpRequest, operator: Operator) -> HttpResponse:
    rows = []
    for each in open_questions():
        quotas = list(TeamQuota.objects.filter(pool=each.pool))
        mine = sum(quota.nominal for quota in quotas if quota.team_id == each.team_id)
        free = each.pool.capacity - sum(quota.nominal for quota in quotas)
        rows.append({"question": each, "has": mine, "most": mine + free, "version": etag_of(each.pool.version)})
    return render(request, "pages/operator/questions.html", context_of(rows=rows, now=database_now()))


@require_POST
@for_operators
def answer_one(request: HttpRequest, operator: Operator, question_id: str) -> HttpResponse:
    def act() -> str:
        act_wanted = request.POST.get("act", "")
        if act_wanted not in ("grant", "refuse"):
            raise Invalid("Choose Approve or Decline.")
        granted = count_of(request, "granted", "Quota") if act_wanted == "grant" else None
        words = request.POST.get("answer", "").strip()
        done = answer(
            operator, question_id, granted=granted, words=words, if_match=version_of(request), now=database_now()
        )
        if granted is None:
            return f"Request of {done.team.name} declined. The team is notified."
        return f"{done.team.name} now has a quota of {granted:,} devices in {done.pool.name}. The team is notified."

    return act_and_redirect(request, act, "operator_questions")
