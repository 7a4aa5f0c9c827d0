"""The points behind the charts of a job's page, of a range of steps: what GET /jobs/{job_id}/metrics answers to a key,
for who is signed in.

Invariant: an answer is bounded: so many series, so many points of each.
"""

from typing import Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.borders.types import read_count
from backend.jobs.selectors import job_visible_to
from backend.pages.views import user_of
from backend.telemetry.representations import MetricsOut
from backend.telemetry.thinned_series import LAST, thinned_metrics

MOST_NAMES: Final = 100
MOST_POINTS: Final = 2_000  # of each series, as the API


@require_safe
@never_cache
def series(request: HttpRequest, job_id: str) -> HttpResponse:
    """Nobody is sent to the sign-in page from here: a script would take that for data."""
    if not request.user.is_authenticated:
        return JsonResponse({"detail": "signed out"}, status=401)
    job = job_visible_to(user_of(request), job_id)
    if job is None:
        return JsonResponse({"detail": "no such job"}, status=404)
    asked = request.GET
    names = [name for name in asked.getlist("names")[:MOST_NAMES] if name.isprintable()]
    first, last, points = (
        read_count(asked.get(name, usual))
        for name, usual in (("from_step", "0"), ("to_step", str(LAST)), ("max_points", "500"))
    )
    if first is None or last is None or points is None or points < 2:
        return JsonResponse({"detail": "from_step, to_step, max_points (from 2): whole numbers"}, status=422)
    times = "times" in asked
    page = thinned_metrics(job, min(points, MOST_POINTS), names, from_step=first, to_step=last, times=times)
    return HttpResponse(MetricsOut.of(page, times=times).model_dump_json(), content_type="application/json")
