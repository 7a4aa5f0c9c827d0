"""Routes that a key limited to one project may call: those of that project's jobs, and team-neutral ones.

Invariant: a route that is not listed here is refused, so a new route is closed to limited keys by default.

Accounts know no jobs: `backend.jobs` fills the port `project_of_job`, which looks up a job's project.
"""

import re
from collections.abc import Callable

from django.http import HttpRequest

from backend.accounts.models import ApiKey
from backend.errors import Denied, NotFound
from backend.ports import Port

ProjectOfJob = Callable[[str], str | None]
"""By the job's id, as written in the URL."""

_PREFIX = "/api/v1"
_NO_PROJECT = re.compile(r"/(me|pools|maintenance|capabilities|templates(/[^/]+)?|schemas/.+|jobs:preview)", re.ASCII)
# Limited by the key's project in `backend.assets.selectors`.
_OF_ITS_OWN_LIMITS = re.compile(r"/(storage|assets(/.+)?)", re.ASCII)
_OF_A_JOB = re.compile(r"/jobs/([^/]+)(/.*)?", re.ASCII)
project_of_job: Port[ProjectOfJob] = Port("the project of a job")


def refuse_beyond_project(key: ApiKey, request: HttpRequest) -> None:
    """Raises `Denied` for resources of the whole team, `NotFound` for another project's job."""
    if key.project_id is None:
        return
    path = request.path.removeprefix(_PREFIX)
    if path in ("/pools", "/maintenance") and request.method != "GET":
        raise Denied(f"This key is limited to the project {key.project_id} and cannot change site-wide settings.")
    if _NO_PROJECT.fullmatch(path) or _OF_ITS_OWN_LIMITS.fullmatch(path) or path == f"/api-keys/{key.pk}":
        return
    if path == "/jobs" and request.method == "POST":
        return  # the body names the project: `refuse_other_project`
    if path in ("/jobs", "/trajectories") and request.GET.getlist("project") == [key.project_id]:
        return
    of_a_job = _OF_A_JOB.fullmatch(path)
    if of_a_job is None:
        raise Denied(
            f"This key is limited to jobs of the project {key.project_id}. To list them, use ?project={key.project_id}."
        )
    if project_of_job()(of_a_job[1]) != key.project_id:
        raise NotFound


def refuse_other_project(key: ApiKey, project_id: str) -> None:
    if key.project_id is not None and key.project_id != project_id:
        raise Denied(f"This key can submit jobs only to the project {key.project_id}.")
