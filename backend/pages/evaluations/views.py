"""Evaluations of a team's checkpoints: running ones, and every result compared with the previous one."""

from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.checkpoints.models import Checkpoint, CheckpointEvaluation
from backend.clock import database_now
from backend.jobs.models import TERMINAL_STATES, Job
from backend.pages import curl
from backend.pages.evaluations.compared import compared
from backend.pages.team.team_views import acting_in, frame_of

A_PAGE: Final = 50
MOST_GOING_ON: Final = 20
_BETWEEN_PULLS_MS: Final = 5_000


@require_safe
@never_cache
@login_required
def evaluations(request: HttpRequest) -> HttpResponse:
    """With ?part, only the live part of the page. `job`: only checkpoints of this training."""
    acting, job_id = acting_in(request), request.GET.get("job", "")[:32]
    of_team = CheckpointEvaluation.objects.filter(checkpoint__job__team=acting.team)
    trained = Job.objects.filter(team=acting.team, pk=job_id).first() if job_id.isidentifier() else None
    if trained is not None:
        of_team = of_team.filter(checkpoint__job=trained)
    results = of_team.select_related("job__created_by", "checkpoint__job").order_by("-at", "-job")
    page = Paginator(results, A_PAGE).get_page(request.GET.get("page"))
    context: dict[str, Any] = frame_of(acting) | {
        "page": page,
        "rows": compared(list(page.object_list)),
        "going_on": _going_on(acting.team.pk, trained),
        "trained": trained,
        "between_pulls_ms": _BETWEEN_PULLS_MS,
        "curl": curl.get("/checkpoints"),
        "now": database_now(),
    }
    return render(request, f"pages/team/{'_' if 'part' in request.GET else ''}evaluations.html", context)


def _going_on(team_id: str, trained: Job | None) -> list[tuple[Job, Checkpoint | None]]:
    """Newest first, each with its checkpoint."""
    jobs = Job.objects.filter(team=team_id, steps=0).exclude(state__in=TERMINAL_STATES).exclude(start_from="")
    if trained is not None:
        jobs = jobs.filter(start_from__in=Checkpoint.objects.filter(job=trained).values("pk"))
    newest = list(jobs.order_by("-created_at", "-id")[:MOST_GOING_ON])
    checkpoints = Checkpoint.objects.select_related("job").in_bulk([each.start_from for each in newest])
    return [(each, checkpoints.get(each.start_from)) for each in newest]
