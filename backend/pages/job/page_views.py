"""One job: its tabs, and the pull that keeps them live.

Invariant: a job of another team gives the same 404 as one that does not exist.
"""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.borders.types import read_count
from backend.clock import database_now
from backend.jobs.models import Job
from backend.jobs.selectors import job_visible_to
from backend.pages.job.contents import content_of, drawn_on, frame_of, regions_of
from backend.pages.job.control_views import job_acted_on
from backend.pages.job.log_lines import log_of
from backend.pages.job.news import PageNews, page_news
from backend.pages.job.panels.snapshot import Snapshot, snapshot_of
from backend.pages.job.panels.tiles import Tiles, tiles_of
from backend.pages.job.panels.verdict_line import VerdictLine, verdict_line_of
from backend.pages.job.tabs import tab_of, tabs_of
from backend.pages.trajectories.reading import newest_step_to_read
from backend.pages.trajectories.tab import reading_part
from backend.pages.views import user_of
from backend.telemetry.representations import JobSummary


@require_safe
@never_cache
@login_required
def job_page(request: HttpRequest, job_id: str, slug: str = "") -> HttpResponse:
    """One of the job's tabs. With ?part, only the regions that depend on the job's state; with ?part=reading the
    trajectories of a step; with ?part=lines the log lines; with ?part=verdict the verdict line."""
    (job, acting), now, tab = job_acted_on(request, job_id), database_now(), tab_of(slug)
    if request.GET.get("part") == "reading":
        return render(request, "pages/job/trajectories/_reading.html", reading_part(job, request.GET))
    if request.GET.get("part") == "lines":
        return render(request, "pages/job/_lines.html", {"log": log_of(job, request.GET), "job": job})
    if tab not in tabs_of(job):
        return redirect("job", job_id=job.pk)
    verdict = verdict_line_of(job)
    context = frame_of(job, acting, now=now) | {"tab": tab, "verdict": verdict, "drawn_here": drawn_on(tab)}
    if request.GET.get("part") == "verdict":
        return render(request, "pages/job/_verdict.html", context)
    context |= regions_of(tab, job, acting, now=now)
    if "part" in request.GET:
        return render(request, "pages/job/renewed.html", context)
    context |= content_of(tab, job, request.GET)
    keys = [key for chart, _ in context.get("charts", []) for key in chart.keys]
    snapshot, tiles = snapshot_of(job, keys), verdict.calmed(tiles_of(job, now=now))
    context |= {
        "tabs": tabs_of(job),
        "snapshot": snapshot,
        "live": _live_seed(job, snapshot, tiles, verdict),
        "tiles": tiles,
    }
    return render(request, tab.template, context)


@require_safe
@never_cache
def live(request: HttpRequest, job_id: str) -> HttpResponse:
    """The pull of a page. Does not redirect to the sign-in page: a script would read it as data."""
    if not request.user.is_authenticated:
        return JsonResponse({"detail": "signed out"}, status=401)
    job = job_visible_to(user_of(request), job_id)
    if job is None:
        return JsonResponse({"detail": "no such job"}, status=404)
    after = read_count(request.GET.get("after", "0"))
    if after is None:
        return JsonResponse({"detail": "after: a cursor, a whole number"}, status=422)
    return HttpResponse(page_news(job, after).model_dump_json(), content_type="application/json")


def _live_seed(job: Job, snapshot: Snapshot, tiles: Tiles, verdict: VerdictLine) -> dict[str, object]:
    """The initial data of the page's script: the shape of a pull, and the range of each series."""
    drawn = snapshot.drawn
    seed = PageNews(
        cursor=snapshot.cursor,
        job=JobSummary.of(job),
        events=[],
        series=dict(drawn.series),
        sampled_step=newest_step_to_read(job),
        more=False,
        tiles=tiles,
        verdict=verdict.stands,
    )
    more = {"bands": drawn.bands, "counts": drawn.counts, "marks": snapshot.marks}
    return seed.model_dump(mode="json") | more
