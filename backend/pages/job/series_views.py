"""The points of a job's charts for a range of steps: like GET /jobs/{job_id}/metrics, but for signed-in users.

Invariant: the numbers of series and of points per series in a response are bounded.
"""

from typing import Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from backend.borders.types import read_count
from backend.jobs.selectors import job_visible_to
from backend.pages.views import user_of
from backend.telemetry.representations import MetricsOut
from backend.telemetry.series.thinned import LAST, thinned_metrics

MOST_NAMES: Final = 100
MOST_POINTS: Final = 2_000  # per series, as in the API


@require_safe
@never_cache
def series(request: HttpRequest, job_id: str) -> HttpResponse:
    """Does not redirect to the sign-in page: a script would read it as data."""
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
