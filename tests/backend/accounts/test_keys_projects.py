"""A key limited to a project reaches that project's jobs; everything else, including new routes, is refused."""

from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import Project, Team, User
from backend.accounts.services import create_api_key
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import Job
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import ResourcePool
from tests.backend.conftest import NOW, Api, MakeSpec
from tests.backend.test_tenant_matrix import ROUTES

pytestmark = pytest.mark.django_db


@pytest.fixture
def other_job(team: Team, alice: User, pool: ResourcePool, make_spec: MakeSpec) -> Job:
    """Of another project of the same team."""
    project = Project.objects.create(team=team, name="Other")
    return submit_job(
        team=team, project=project, by=Submitter(user=alice, key=None), spec=make_spec(), pool=pool, now=NOW
    )


@pytest.fixture
def limited(team: Team, alice: User, project: Project) -> Api:
    scopes = ["jobs:read", "jobs:write", "usage:read", "team:read", "team:write", "audit:read", "checkpoints:read"]
    return Api(create_api_key(team=team, created_by=alice, name="narrow", scopes=scopes, project=project)[1])


def test_it_reaches_the_jobs_of_its_project_and_no_others(limited: Api, job: Job, other_job: Job) -> None:
    assert limited.get(f"/jobs/{job.pk}").status_code == 200
    for path in ("", "/events", "/metrics", "/verdict"):
        assert limited.get(f"/jobs/{other_job.pk}{path}").status_code == 404
    assert limited.request("POST", f"/jobs/{other_job.pk}/cancel").status_code == 404
    other_job.refresh_from_db()
    assert other_job.state == "queued"


def test_it_lists_with_its_project_named_and_not_without(
    limited: Api, client: Client, job: Job, other_job: Job, project: Project
) -> None:
    assert [row["id"] for row in limited.get("/jobs", project=project.pk).json()["data"]] == [job.pk]
    for query in ("", f"project={other_job.project_id}", f"project={project.pk}&project={other_job.project_id}"):
        answer = client.get(f"/api/v1/jobs?{query}", headers={"Authorization": f"Bearer {limited.key}"})
        assert answer.status_code == 403


def test_it_submits_to_its_project_only(limited: Api, other_job: Job, project: Project, make_spec: MakeSpec) -> None:
    spec = make_spec().model_dump(mode="json")
    refused = limited.request("POST", "/jobs", {"project": other_job.project_id, "spec": spec})
    assert refused.status_code == 403
    assert limited.request("POST", "/jobs", {"project": project.pk, "spec": spec}).status_code == 202


def test_it_starts_from_no_other_projects_checkpoint(
    limited: Api, api: Api, other_job: Job, project: Project, make_spec: MakeSpec
) -> None:
    checkpoint = Checkpoint.objects.create(
        job=other_job, attempt=1, step=1, version=1, uri="file:///nowhere", manifest_sha256="0" * 64, num_bytes=1,
        created_at=NOW, state=CheckpointState.COMPLETE,
    )  # fmt: skip
    body = {"project": project.pk, "spec": make_spec().model_dump(mode="json"), "start_from": checkpoint.pk}
    assert limited.request("POST", "/jobs", body).status_code == 404
    assert api.request("POST", "/jobs", body).status_code == 202, "a key of the whole team may"


OPEN = {
    "/me",
    "/pools",
    "/maintenance",
    "/capabilities",
    "/templates",
    "/templates/{name}",
    "/schemas/job-spec",
    "/jobs:preview",
}
WHOLE_TEAM = [
    (route.method, route.path)
    for route in ROUTES
    if "{job_id}" not in route.path and route.path not in OPEN | {"/jobs"}
]


@pytest.mark.parametrize(("method", "path"), WHOLE_TEAM)
def test_whatever_concerns_the_whole_team_is_refused(limited: Api, method: str, path: str) -> None:
    address = path
    for part in path.split("/"):
        if part.startswith("{"):
            address = address.replace(part, "x" * 20)
    body: dict[str, Any] | None = {} if method in {"POST", "PUT", "PATCH"} else None
    assert limited.request(method, address, body).status_code == 403
