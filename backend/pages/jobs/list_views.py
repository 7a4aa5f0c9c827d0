"""The list of jobs."""

from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.clock import database_now
from backend.jobs.models import JobState
from backend.jobs.selectors import jobs_visible_to
from backend.pages import curl, words
from backend.pages.jobs.asked import ACTIVE, Asked
from backend.pages.jobs.choices import choices_of, narrowed
from backend.pages.jobs.rows import num_by_state, rows_of
from backend.pages.jobs.several import SEVERAL
from backend.pages.new_job.submit_targets import quota_use_of, submit_targets_of
from backend.pages.views import user_of

JOBS_PER_PAGE: Final = 25
_COLUMNS: Final = (
    ("state", "State"),
    ("name", "Name"),
    ("progress", "Progress"),
    ("", "Reward"),
    ("devices", "Devices"),
    ("age", "Age"),
    ("owner", "Owner"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    """Empty: not sortable."""
    title: str
    sorts: str
    address: str
    """The list sorted by this column; reversed if it already is."""


@require_safe
@never_cache
@login_required
def jobs(request: HttpRequest) -> HttpResponse:
    """With ?part, only the list itself: an open page fetches it when notified of a change."""
    user, now, asked = user_of(request), database_now(), Asked.of(request.GET)
    visible, is_part = jobs_visible_to(user), "part" in request.GET
    found = asked.found_in(visible)
    nums = num_by_state(found)
    page = Paginator(asked.in_order(asked.in_state(found)), JOBS_PER_PAGE).get_page(request.GET.get("page"))
    may_submit = bool(submit_targets_of(user))
    context: dict[str, Any] = {
        "asked": asked,
        "page": page,
        "newer": asked.address(page=page.number - 1),
        "older": asked.address(page=page.number + 1),
        "rows": rows_of(list(page.object_list), now=now),
        "columns": [_column(asked, name, title) for name, title in _COLUMNS],
        "now": now,
        "filters": _filters(asked, nums),
        "narrowed": list(narrowed(asked)),
        "may_submit": may_submit,
        "several": SEVERAL if may_submit else (),
    }
    if not is_part:
        context |= {
            "choices": choices_of(asked, visible),
            "quotas": quota_use_of(user),
            "curl": curl.get("/jobs", **_as_rest_asks(asked)),
        }
    return render(request, "pages/jobs/_list.html" if is_part else "pages/jobs/list.html", context)


def _column(asked: Asked, name: str, title: str) -> Column:
    sorts = asked.sorts_by(name) if name else ""
    begins_high = name in ("age", "progress", "devices")
    is_down = sorts == "ascending" if sorts else begins_high
    wanted = f"-{name}" if is_down else name
    return Column(name=name, title=title, sorts=sorts, address=asked.address(sort="" if wanted == "-age" else wanted))


def _filters(asked: Asked, nums: dict[str, int]) -> list[tuple[str, str, int, str]]:
    """(value, label, number, URL) of each state, in the order of a job's life."""
    active = sum(nums.get(state, 0) for state in words.ACTIVE_STATES)
    present = [(state, state, nums[state]) for state in JobState.values if nums.get(state)]
    every = [("", "all", sum(nums.values())), (ACTIVE, ACTIVE, active), *present]
    return [(value, label, num, asked.address(state=value)) for value, label, num in every]


def _as_rest_asks(asked: Asked) -> dict[str, str]:
    """The filters that REST supports too."""
    state = asked.state if asked.state in JobState.values else ""
    query = {
        "state": state,
        "q": asked.q,
        "project": asked.project,
        "tag": asked.tag,
        "created_by": asked.owner,
    }
    return {name: text for name, text in query.items() if text}
