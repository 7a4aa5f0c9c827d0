"""REST: the verdict on a job."""

from django.http import HttpRequest
from ninja import Router

from backend.accounts.keys.bearer import MAY_READ, caller_of
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.jobs.selectors import the_job
from backend.verdicts.selectors import VerdictOut, verdict_of

router = Router(tags=["Telemetry"])


@router.get(
    "/jobs/{job_id}/verdict", auth=MAY_READ, response={200: VerdictOut} | problems(404), summary="Get a job's verdict"
)
def verdict(request: HttpRequest, job_id: PathId) -> VerdictOut:
    """How the job is doing, judged by rules over its series. The first finding is the verdict; each comes with the
    supporting points and what to do. Renewed within seconds of new steps or events."""
    return verdict_of(the_job(caller_of(request).team, job_id))
