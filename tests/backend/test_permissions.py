"""Who may do what: every route of the API times every actor. A route without a row here fails.

An actor of another team gets 404 for what is ours, never 403; a key without the scope gets 403.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ninja.operation import Operation

from backend.accounts.models import ApiKey, Project, User
from backend.accounts.services import revoke_api_key
from backend.jobs.models import Job, JobAttempt
from backend.rest import api as rest_api

STRANGERS = dict.fromkeys(("anonymous", "revoked", "expired"), 401)
INSIDERS = ("owner", "member", "viewer", "outsider", "read only", "write only")

ANY_KEY = STRANGERS | dict.fromkeys(INSIDERS, 200)
READS_OWN = ANY_KEY | {"write only": 403}
READS_JOB = READS_OWN | {"outsider": 404}
WRITES_JOB = STRANGERS | {"owner": 202, "member": 202, "outsider": 404}
WRITES_JOB |= dict.fromkeys(("viewer", "read only"), 403) | {"write only": 202}

MATRIX: dict[tuple[str, str], dict[str, int]] = {
    ("GET", "/me"): ANY_KEY,
    ("GET", "/templates"): ANY_KEY,
    ("GET", "/templates/{name}"): ANY_KEY,
    ("GET", "/schemas/job-spec"): ANY_KEY,
    ("GET", "/projects"): READS_OWN,
    ("GET", "/pools"): READS_OWN,
    ("GET", "/jobs"): READS_OWN,
    ("POST", "/jobs"): WRITES_JOB,
    ("POST", "/jobs:preview"): READS_OWN,
    ("GET", "/jobs/{job_id}"): READS_JOB,
    ("GET", "/jobs/{job_id}/events"): READS_JOB,
    ("GET", "/jobs/{job_id}/attempts"): READS_JOB,
    ("GET", "/jobs/{job_id}/metrics"): READS_JOB,
    ("GET", "/jobs/{job_id}/trajectories"): READS_JOB,
    ("GET", "/jobs/{job_id}/checkpoints"): READS_JOB,
    ("POST", "/jobs/{job_id}/cancel"): WRITES_JOB,
}


def operations() -> Iterator[tuple[str, str, Operation]]:
    for bound in rest_api._get_bound_routers():
        for path, view in bound.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield method, bound.prefix + path, operation


ROUTES = sorted((method, path) for method, path, _ in operations())


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert not set(ROUTES) - set(MATRIX), "give the new route a row in MATRIX"
    assert not set(MATRIX) - set(ROUTES)


def test_every_route_asks_for_a_key() -> None:
    assert all(operation.auth_callbacks for _, _, operation in operations())


@pytest.fixture
def keys(
    make_key: Callable[..., str], alice: User, bob: User, vera: User, charlie: User, key_row: Callable[[str], ApiKey]
) -> dict[str, str | None]:
    revoked = make_key(alice)
    revoke_api_key(key_row(revoked), now=datetime.now(UTC))
    return {
        "anonymous": None,
        "revoked": revoked,
        "expired": make_key(alice, expires_in=timedelta(seconds=-1)),
        "owner": make_key(alice),
        "member": make_key(bob),
        "viewer": make_key(vera),
        "outsider": make_key(charlie),
        "read only": make_key(alice, scopes=("jobs:read",)),
        "write only": make_key(alice, scopes=("jobs:write",)),
    }


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_the_matrix(
    keys: dict[str, str | None],
    anonymous: Any,
    method: str,
    path: str,
    make_job: Any,
    project: Project,
) -> None:
    for actor, status in MATRIX[method, path].items():
        job = make_job()
        before = Job.objects.count()
        body = None
        if method == "POST" and "{" not in path:
            body = {"spec": {"name": "Sums"}} | ({} if "preview" in path else {"project": project.pk})
        anonymous.key = keys[actor]
        address = path.replace("{job_id}", job.pk).replace("{name}", "running_sums")
        response = anonymous.request(method, address, body)
        assert response.status_code == status, (actor, response.content)
        if actor == "outsider" and status < 300:
            assert job.pk not in response.content.decode() and project.pk not in response.content.decode()
        if status >= 400:
            job.refresh_from_db()
            assert job.state == "queued", "a refused request changes nothing"
            assert Job.objects.count() == before, "a refused request writes nothing"


def test_an_outsider_cannot_tell_ours_from_what_does_not_exist(
    api_of: Any, charlie: User, job: Job, attempt: JobAttempt
) -> None:
    outsider = api_of(charlie)
    unknown = "job_" + "0" * 20
    for method, path in ROUTES:
        if "{job_id}" not in path:
            continue
        ours, nothing = (outsider.request(method, path.replace("{job_id}", one)).json() for one in (job.pk, unknown))
        for document in (ours, nothing):
            del document["request_id"], document["instance"]
        assert ours == nothing
    job.refresh_from_db()
    assert job.state == "starting"
