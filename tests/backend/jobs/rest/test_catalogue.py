"""GET /templates, /schemas/job-spec, /pools, /projects, /me."""

from datetime import datetime
from typing import Any

from backend.accounts.models import Project, User
from backend.jobs.models import Job, JobAttempt
from backend.pools.models import ResourcePool
from engine.presets.by_model import PRESET_NUMBERS, without_presets
from engine.spec.job import JobSpec
from engine.spec.settings.paths import is_set


def test_every_template_can_be_submitted(api: Any, project: Project, pool: ResourcePool) -> None:
    templates = api.get("/templates").json()["data"]
    assert templates[0]["name"] == "running_sums" and len(templates) >= 8
    for template in templates:
        assert template["about"].endswith(".")
        assert api.get(f"/templates/{template['name']}").json() == template
        spec = JobSpec.model_validate(template["spec"])
        assert without_presets(spec) == template["spec"] and not any(is_set(spec, path) for path in PRESET_NUMBERS)
        assert api.post("/jobs", {"project": project.pk, "spec": template["spec"]}).status_code == 202


def test_schema_describes_a_spec(api: Any) -> None:
    schema = api.get("/schemas/job-spec").json()
    assert schema["title"] == "JobSpec" and schema["required"] == ["name"]
    assert "Held-out prompts, answered with the initial weights (in parallel with training) and the last." in str(
        schema
    )


def test_pools_show_capacity_use_and_own_quota(
    api: Any, api_of: Any, charlie: User, job: Job, attempt: JobAttempt
) -> None:
    [mine] = api.get("/pools").json()["data"]
    assert (mine["name"], mine["capacity"], mine["reserved"]) == ("small", 8, 3)
    terms = {"borrow_limit": None, "lend_limit": None, "weight": 1.0, "borrowed": 0}
    assert mine["quota"] == terms | {"nominal": 8, "used": 3} and mine["is_open"]
    [theirs] = api_of(charlie).get("/pools").json()["data"]
    assert (theirs["reserved"], theirs["quota"]) == (3, terms | {"nominal": 0, "used": 0})


def test_projects_are_the_teams_own(api: Any, project: Project, other_project: Project) -> None:
    assert [row["id"] for row in api.get("/projects").json()["data"]] == [project.pk]


def test_me_shows_key_and_scopes(api_of: Any, alice: User, vera: User, now: datetime) -> None:
    me = api_of(alice).get("/me").json()
    assert (me["user"], me["role"], me["team"]["name"]) == (alice.email, "owner", "Ants")
    assert set(me["scopes"]) >= {"jobs:read", "jobs:write"} and me["key"]["prefix"].startswith("lam_live_")
    assert "jobs:write" not in api_of(vera).get("/me").json()["scopes"], "a viewer's key cannot write"
