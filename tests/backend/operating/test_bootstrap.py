"""`manage.py bootstrap`: turns an empty database into a site that accepts its first job, once."""

import io
import json
import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from backend.accounts.models import Membership, Project, ResetLink, Team, User
from backend.audit.models import AuditEntry
from backend.environment import Environment
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.pools.models import ResourcePool, TeamQuota
from engine.spec.job import JobSpec
from tests.backend.conftest import NOW
from tests.backend.operating.conftest import Broken, Dashboard

pytestmark = pytest.mark.django_db
ADA = "ada@example.org"


@pytest.fixture(autouse=True)
def _ray(with_ray: Environment, settings: Any) -> None:
    settings.ENVIRONMENT = with_ray


def bootstrap(*flags: str) -> str:
    out = io.StringIO()
    call_command("bootstrap", *flags, stdout=out)
    return out.getvalue()


def told(*flags: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bootstrap(*flags, "--json"))
    return document


def _all_there_is() -> tuple[int, ...]:
    return tuple(
        model.objects.count()
        for model in (User, Team, Membership, Project, ResourcePool, TeamQuota, ResetLink, AuditEntry)
    )


def test_an_empty_site_takes_its_first_job_afterwards() -> None:
    bootstrap("--email", ADA)
    user, pool, project = User.objects.get(email=ADA), ResourcePool.objects.get(), Project.objects.get()
    assert user.is_staff and user.is_superuser and not user.has_usable_password()
    spec = JobSpec.model_validate({"name": "the first"})
    submit_job(team=project.team, project=project, by=Submitter(user=user, key=None), spec=spec, pool=pool, now=NOW)
    assert schedule_pool(pool.pk, now=NOW) == 1


def test_the_pool_has_the_devices_that_ray_reports(dashboard: Dashboard) -> None:
    dashboard.has_nodes({"CPU": 4.0}, {"CPU": 16.0, "GPU": 8.0, "accelerator_type:H100": 1.0}, {"GPU": 2.0})
    assert told("--email", ADA)["capacity"] == 10
    pool = ResourcePool.objects.get()
    assert (pool.capacity, pool.flavor, TeamQuota.objects.get().nominal) == (10, "H100", 10)


def test_without_accelerators_it_has_ray_s_cpus() -> None:
    assert told("--email", ADA)["capacity"] == 8
    assert ResourcePool.objects.get().flavor == "cpu"


def test_the_link_sets_a_password_once_and_signs_in() -> None:
    link = told("--email", ADA)["link"]
    path = re.sub(r"^https?://[^/]+", "", link)
    browser = Client()
    words = {"password": "still-waters-run-deep", "again": "still-waters-run-deep"}
    assert browser.post(path, words).status_code == 302
    assert browser.post(path, words).status_code == 404
    assert browser.login(email=ADA, password="still-waters-run-deep")


def test_repeated_run_changes_nothing_and_reports_it() -> None:
    bootstrap("--email", ADA)
    before = _all_there_is()
    for flags in (["--email", ADA], [], ["--email", ADA.upper(), "--capacity", "8", "--quota", "8"]):
        output = bootstrap(*flags)
        assert output.startswith("Nothing to do") and f"account reset {ADA}" in output
        assert "/password/reset/" not in output
    assert _all_there_is() == before


def test_repeated_run_does_not_query_ray(settings: Any, broken: Broken) -> None:
    bootstrap("--email", ADA)
    settings.ENVIRONMENT = broken(ray_url="http://127.0.0.1:9")
    assert told()["made"] == []


def test_another_capacity_is_refused_with_where_to_change_it() -> None:
    bootstrap("--email", ADA)
    before = _all_there_is()
    with pytest.raises(CommandError, match="has 8 devices, not 16: an operator can change that on http") as refused:
        bootstrap("--capacity", "16", "--team", "Another")
    address = str(refused.value).split()[-1]
    client = Client()
    client.force_login(User.objects.get())
    page = client.get(re.sub(r"^https?://[^/]+", "", address))
    assert b'name="capacity"' in page.content, "a page that changes it"
    assert _all_there_is() == before


def test_another_quota_is_refused_with_where_to_change_it() -> None:
    bootstrap("--email", ADA)
    with pytest.raises(CommandError, match=r"a quota of 8 in the pool main, not 4: .*PUT /api/v1/pools/.*/operator/"):
        bootstrap("--quota", "4")


def test_existing_user_becomes_operator_and_keeps_password() -> None:
    User.objects.create_user(ADA, "still-waters-run-deep")
    document = told("--email", ADA)
    assert f"{ADA} is now an operator" in document["made"] and document["link"] == ""
    assert User.objects.get().is_staff and User.objects.get().check_password("still-waters-run-deep")


def test_second_operator_gets_own_team_and_rest_of_the_pool() -> None:
    bootstrap("--email", ADA, "--quota", "6")
    document = told("--email", "bea@example.org", "--team", "Bees")
    assert (document["capacity"], document["quota"], ResourcePool.objects.count()) == (8, 2, 1)
    assert Membership.objects.get(user__email="bea@example.org").team.name == "Bees"


def test_a_closed_account_is_refused() -> None:
    User.objects.create_user(ADA, is_active=False)
    with pytest.raises(CommandError, match="is closed or a service account"):
        bootstrap("--email", ADA)
    assert not ResourcePool.objects.exists()


def test_silent_ray_is_reported_with_advice(settings: Any, broken: Broken) -> None:
    settings.ENVIRONMENT = broken(ray_url="http://127.0.0.1:9")
    with pytest.raises(CommandError, match=r"LAMINAR_RAY_URL.*--capacity 8"):
        bootstrap("--email", ADA)
    assert not User.objects.exists()
    assert told("--email", ADA, "--capacity", "3")["capacity"] == 3


def test_a_ray_without_devices_makes_no_pool(dashboard: Dashboard) -> None:
    dashboard.has_nodes({"memory": 1e9})
    with pytest.raises(CommandError, match="no devices yet"):
        bootstrap("--email", ADA)


def test_refused_token_is_reported(dashboard: Dashboard) -> None:
    dashboard.token = "another"
    with pytest.raises(CommandError, match="401"):
        bootstrap("--email", ADA)


@pytest.mark.parametrize(
    ("flags", "told_of"),
    [
        (["--email", "ada"], "--email must be an address such as"),
        (["--email", ADA, "--team", "  "], "--team must be one line of 1 to 80 characters"),
        (["--email", ADA, "--capacity", "0"], "--capacity must be a number of devices from 1"),
        (["--email", ADA, "--quota", "9"], "nothing was changed: Nominal must be at most 8"),
        ([], "--email is required: the operator"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_made(flags: list[str], told_of: str) -> None:
    with pytest.raises(CommandError, match=told_of):
        bootstrap(*flags)
    assert not User.objects.exists() and not ResourcePool.objects.exists() and not Team.objects.exists()


def test_terminal_prompts_for_missing_values(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def answer(question: str) -> str:
        prompts.append(question)
        return {"Your": ADA, "Team": "", "Proj": "Sums"}[question[:4]]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    bootstrap("--pool", "first")
    assert prompts == ["Your email address: ", "Team [Operators]: ", "Project [First steps]: "]
    assert (Team.objects.get().name, Project.objects.get().name) == ("Operators", "Sums")
    assert ResourcePool.objects.get().name == "first"


def test_bootstrap_is_audited() -> None:
    bootstrap("--email", ADA)
    entries = AuditEntry.objects.filter(action="site.begun", actor="operator")
    assert entries.get().team == Team.objects.get() and entries.get().target == User.objects.get().public_id
