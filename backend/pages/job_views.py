"""One job: its page, the pull that keeps it live, and cancelling it.

Invariant: a job of another team is answered like one that does not exist.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from backend.accounts.models import User
from backend.accounts.selectors import may_submit
from backend.borders.types import read_count
from backend.clock import database_now
from backend.errors import InvalidState
from backend.jobs.attempts.failures import explain_failure
from backend.jobs.attempts.resume_points import job_of_checkpoint
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import Job, JobEvent, JobState
from backend.jobs.selectors import job_visible_to
from backend.pages import curl
from backend.pages.charts import charts_of
from backend.pages.checkpoint_views import rows_of
from backend.pages.event_sentences import event_sentences_of
from backend.pages.snapshot import Snapshot, snapshot_of
from backend.pages.tiles import Tiles, tiles_of
from backend.pages.timeline import timeline_of
from backend.pages.views import user_of
from backend.telemetry.live import live_delta
from backend.telemetry.representations import JobSummary, LiveDelta

NUM_EVENTS = 100
_MOST_MARKS = 400


class PageNews(LiveDelta):
    """The answer to a page's pull: all that is new, and its tiles as they are now."""

    tiles: Tiles


@require_safe
@never_cache
@login_required
def job_page(request: HttpRequest, job_id: str) -> HttpResponse:
    """With ?part, only the regions whose markup depends on the job's state."""
    job, now = _job(request, job_id), database_now()
    context = _regions(job, user_of(request), now=now)
    if "part" in request.GET:
        return render(request, "pages/job/_regions.html", context)
    snapshot = snapshot_of(job)
    tiles = tiles_of(job, now=now)
    context |= {
        "snapshot": snapshot,
        "live": _live_seed(job, snapshot, tiles),
        "charts": [
            (chart, curl.get(f"/jobs/{job.pk}/metrics", names=chart.keys, max_points="500")) for chart in charts_of(job)
        ],
        "tiles": tiles,
        "spec_json": json.dumps(job.spec, indent=2, ensure_ascii=False),
        "curls": _curls(job),
        "origin": job_of_checkpoint(job.team, job.start_from) if job.start_from else None,
    }
    return render(request, "pages/job/page.html", context)


@require_safe
@never_cache
def live(request: HttpRequest, job_id: str) -> HttpResponse:
    """The pull of a page. Nobody is sent to the sign-in page from here: a script would take that for data."""
    if not request.user.is_authenticated:
        return JsonResponse({"detail": "signed out"}, status=401)
    job = job_visible_to(user_of(request), job_id)
    if job is None:
        return JsonResponse({"detail": "no such job"}, status=404)
    after = read_count(request.GET.get("after", "0"))
    if after is None:
        return JsonResponse({"detail": "after: a cursor, a whole number"}, status=422)
    news = live_delta(job, after)
    job.refresh_from_db()  # tiles are never older than the points that come with them
    answer = PageNews(**dict(news), tiles=tiles_of(job, now=database_now()))
    return HttpResponse(answer.model_dump_json(), content_type="application/json")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@login_required
def cancel(request: HttpRequest, job_id: str) -> HttpResponse:
    """GET asks once more, for browsers without the dialog's script."""
    job, user = _job(request, job_id), user_of(request)
    if not may_submit(user, job.team):
        raise PermissionDenied("Viewers may look at jobs, and cancel none.")
    if request.method != "POST":
        return render(request, "pages/job/cancel.html", {"job": job, "may_cancel": _may_cancel(job)})
    try:
        cancelled, changed = cancel_job(job.pk, actor=f"user:{user.pk}", now=database_now())
    except InvalidState as refusal:
        messages.error(request, f"{refusal.detail[:1].upper()}{refusal.detail[1:]}.")
        return redirect("job", job_id=job.pk)
    if changed and cancelled.state == JobState.CANCELLED:
        messages.success(request, "The job is cancelled.")
    elif changed:
        messages.success(request, "The engine was asked to let go; the job stops within seconds.")
    return redirect("job", job_id=job.pk)


def _job(request: HttpRequest, job_id: str) -> Job:
    job = job_visible_to(user_of(request), job_id)
    if job is None:
        raise Http404("There is no such job, or it is not your team's.")
    return job


def _may_cancel(job: Job) -> bool:
    moves = LEGAL_MOVES[job.state]
    return job.state != JobState.STOPPING and (JobState.CANCELLED in moves or JobState.STOPPING in moves)


def _regions(job: Job, user: User, *, now: datetime) -> dict[str, Any]:
    member = may_submit(user, job.team)
    newest = list(job.events.order_by("-seq")[:NUM_EVENTS])
    return {
        "job": job,
        "now": now,
        "may_cancel": member and _may_cancel(job),
        "may_submit": member,
        "cancel_curl": curl.post(f"/jobs/{job.pk}/cancel"),
        "failure": explain_failure(job) if job.state == JobState.FAILED else None,
        "explain_curl": curl.get(f"/jobs/{job.pk}/explain"),
        "checkpoints": [] if job.only_evaluates else rows_of(job, may_evaluate=member),
        "checkpoints_curl": curl.get(f"/jobs/{job.pk}/checkpoints"),
        "logs_curl": curl.get(f"/jobs/{job.pk}/logs", level="warning"),
        "timeline": timeline_of(_milestones(job), now=now),
        "event_sentences": event_sentences_of(newest, job),
        "num_events": newest[0].seq if newest else 0,
        "events_curl": curl.get(f"/jobs/{job.pk}/events"),
    }


def _milestones(job: Job) -> list[JobEvent]:
    """Changes of state, and the newest of what is marked between them."""
    kept = ~Q(to_state="") | Q(type__in=("fault_detected", "checkpoint_saved", "evaluated"))
    newest = job.events.filter(kept).order_by("-seq")[:_MOST_MARKS]
    return sorted(newest, key=lambda event: event.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curls:
    job: str
    reward: str
    evaluation: str
    trajectories: str


def _curls(job: Job) -> Curls:
    path = f"/jobs/{job.pk}"
    return Curls(
        job=curl.get(path),
        reward=curl.get(f"{path}/metrics", names=("reward/mean",), max_points="500"),
        evaluation=curl.get(f"{path}/metrics", names=("evaluation/reward",)),
        trajectories=curl.get(f"{path}/trajectories"),
    )


def _live_seed(job: Job, snapshot: Snapshot, tiles: Tiles) -> dict[str, Any]:
    """The data that the page's script starts from: the shape of a pull."""
    seed = PageNews(
        cursor=snapshot.cursor,
        job=JobSummary.of(job),
        events=[],
        series=dict(snapshot.series),
        trajectories=list(snapshot.trajectories),
        more=False,
        tiles=tiles,
    )
    return seed.model_dump(mode="json")
