"""Routes for a key that is limited to one project: they reach that project's jobs, and nothing of the others.

Invariant: a route that is not named here is refused, so a new one that forgets this rule gives nothing away.

Accounts know no jobs: how a job's project is found is a port, `project_of_job`, that `backend.jobs` fills.
"""

import re
from collections.abc import Callable

from django.http import HttpRequest

from backend.accounts.models import ApiKey
from backend.errors import Denied, NotFound
from backend.ports import Port

ProjectOfJob = Callable[[str], str | None]
"""By the job's id, as it stands in the address."""

_PREFIX = "/api/v1"
_TELLS_OF_NO_PROJECT = re.compile(
    r"/(me|pools|maintenance|capabilities|templates(/[^/]+)?|schemas/.+|jobs:preview)", re.ASCII
)
# Shown and changed as far as the key's project reaches: `backend.assets.selectors`.
_OF_ITS_OWN_LIMITS = re.compile(r"/(storage|assets(/.+)?)", re.ASCII)
_OF_A_JOB = re.compile(r"/jobs/([^/]+)(/.*)?", re.ASCII)
project_of_job: Port[ProjectOfJob] = Port("the project of a job")


def refuse_beyond_project(key: ApiKey, request: HttpRequest) -> None:
    """Raises `Denied` for what concerns the whole team, `NotFound` for another project's job."""
    if key.project_id is None:
        return
    path = request.path.removeprefix(_PREFIX)
    if path in ("/pools", "/maintenance") and request.method != "GET":
        raise Denied(f"This key reaches the project {key.project_id} only; that is everybody's.")
    if _TELLS_OF_NO_PROJECT.fullmatch(path) or _OF_ITS_OWN_LIMITS.fullmatch(path) or path == f"/api-keys/{key.pk}":
        return
    if path == "/jobs" and request.method == "POST":
        return  # the body names the project: `refuse_other_project`
    if path in ("/jobs", "/trajectories") and request.GET.getlist("project") == [key.project_id]:
        return
    of_a_job = _OF_A_JOB.fullmatch(path)
    if of_a_job is None:
        raise Denied(f"This key reaches the project {key.project_id} only; a list of jobs needs ?project= with it.")
    if project_of_job()(of_a_job[1]) != key.project_id:
        raise NotFound


def refuse_other_project(key: ApiKey, project_id: str) -> None:
    if key.project_id is not None and key.project_id != project_id:
        raise Denied(f"This key submits to the project {key.project_id} only.")
