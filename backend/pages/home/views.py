"""Home: running jobs, jobs that need attention, the teams' devices, and the jobs that start next.

Invariant: of every kind the page shows a few rows and a count of the rest, so it costs the same for a team of two
and for one of two hundred.
"""

from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.accounts.selectors import teams_of
from backend.clock import database_now
from backend.jobs.models import HOLDING_STATES
from backend.jobs.selectors import jobs_visible_to
from backend.jobs.submitting.templates import gallery
from backend.pages import curl
from backend.pages.home.capacity import lines_of, months_left, pools_held
from backend.pages.home.needs import needs_of
from backend.pages.jobs.rows import rows_of
from backend.pages.new_job.submit_targets import submit_targets_of
from backend.pages.views import user_of

MOST_RUNNING: Final = 6
FIRST_TEMPLATES: Final = 4
BETWEEN_PULLS_MS: Final = 3_000


@require_safe
@never_cache
@login_required
def home(request: HttpRequest) -> HttpResponse:
    """With ?part, only the live part: an open page fetches it when notified of a change."""
    user, now = user_of(request), database_now()
    teams, jobs = list(teams_of(user)), jobs_visible_to(user)
    running = jobs.filter(state__in=HOLDING_STATES)
    context: dict[str, Any] = {
        "teams": teams,
        "is_new": not jobs.exists(),
        "rows": rows_of(list(running[:MOST_RUNNING]), now=now),
        "num_running": running.count(),
        "needs": needs_of(user, now=now),
        "pools": pools_held(teams),
        "months": months_left(teams, now=now),
        "lines": lines_of(teams, now=now),
        "may_submit": bool(submit_targets_of(user)),
        "templates": gallery()[:FIRST_TEMPLATES],
        "now": now,
        "between_pulls_ms": BETWEEN_PULLS_MS,
        "curl": curl.get("/jobs", state="running"),
    }
    return render(request, "pages/home/_now.html" if "part" in request.GET else "pages/home/page.html", context)
