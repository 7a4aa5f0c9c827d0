"""The job list and the help page."""

import re

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.accounts.models import User
from backend.clock import database_now
from backend.jobs.models import JobState
from backend.pages import curl, words
from backend.pages.glossary import GLOSSARY
from backend.pages.job_rows import jobs_found, num_by_state, rows_of
from backend.pages.submit_targets import quota_use_of, submit_targets_of

JOBS_PER_PAGE = 25
_LONGEST_QUERY = 120
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ACTIVE = "active"


def user_of(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "login_required stands before every page"
    return request.user


def home(request: HttpRequest) -> HttpResponse:
    return redirect("jobs")


@require_safe
@never_cache
@login_required
def jobs(request: HttpRequest) -> HttpResponse:
    """With ?part, only the list itself: what an open page asks for when it was told that something changed."""
    now = database_now()
    query = _CONTROL.sub("", request.GET.get("q", "")).strip()[:_LONGEST_QUERY]
    state = request.GET.get("state", "")
    found = jobs_found(user_of(request), query=query)
    nums = num_by_state(found)
    if state == _ACTIVE:
        found = found.filter(state__in=words.ACTIVE_STATES)
    elif state in JobState.values:
        found = found.filter(state=state)
    else:
        state = ""
    page = Paginator(found, JOBS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": rows_of(list(page.object_list), now=now),
        "now": now,
        "query": query,
        "state": state,
        "filters": _filters(nums),
        "num_all": sum(nums.values()),
        "may_submit": bool(submit_targets_of(user_of(request))),
        "quotas": quota_use_of(user_of(request)),
        "curl": curl.get("/jobs", **({"state": state} if state in JobState.values else {})),
    }
    return render(request, "pages/jobs/_list.html" if "part" in request.GET else "pages/jobs/list.html", context)


@require_safe
def help_page(request: HttpRequest) -> HttpResponse:
    example = {"project": "PROJECT_ID", "spec": {"name": "From the terminal", "training": {"steps": 60}}}
    context = {
        "glossary": GLOSSARY,
        "states": [(state, words.STATE_MEANING[state]) for state in JobState.values],
        "list_curl": curl.get("/jobs"),
        "submit_curl": curl.post("/jobs", example, idempotent=True),
        "metrics_curl": curl.get("/jobs/JOB_ID/metrics", names=("reward/mean",)),
        "api_docs": "/api/v1/docs",
    }
    return render(request, "pages/help.html", context)


def _filters(nums: dict[str, int]) -> list[tuple[str, str, int]]:
    """(value, label, number): all that there are, in the order of a job's life."""
    active = sum(nums.get(state, 0) for state in words.ACTIVE_STATES)
    present = [(state, state, nums[state]) for state in JobState.values if nums.get(state)]
    return [("", "all", sum(nums.values())), (_ACTIVE, "active", active), *present]
