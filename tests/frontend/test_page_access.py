"""Permissions on job pages; signing in and out."""

import pytest
from django.test import Client

from backend.jobs.models import Job, JobState
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/new", "/jobs/{job}/", "/jobs/{job}/cancel"])
def test_strangers_are_sent_to_sign_in(world: World, path: str) -> None:
    path = path.format(job=seed.submitted(world).pk)
    response = Client().get(path)
    assert response.status_code == 302
    assert response["Location"] == f"/accounts/login/?next={path}"


def test_pull_answers_signed_out_visitor_with_json(world: World) -> None:
    response = Client().get(f"/jobs/{seed.submitted(world).pk}/live")
    assert (response.status_code, response["Content-Type"]) == (401, "application/json")


@pytest.mark.parametrize("path", ["", "cancel", "live"])
def test_another_teams_job_does_not_exist(world: World, outsider: Client, path: str) -> None:
    job = seed.submitted(world)
    answers = [outsider.get(f"/jobs/{pk}/{path}") for pk in (job.pk, "job_00000000000000000000", "x' or 1", "%00")]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert outsider.post(f"/jobs/{job.pk}/cancel").status_code == 404
    assert job.name not in text_of(outsider.get("/jobs/"))
    assert Job.objects.get().state == JobState.QUEUED


def test_a_viewer_looks_and_touches_nothing(world: World, viewer: Client) -> None:
    job = seed.submitted(world)
    page = text_of(viewer.get(f"/jobs/{job.pk}/"))
    assert job.name in page
    assert "Cancel job" not in page
    assert "New job" not in text_of(viewer.get("/jobs/"))
    assert viewer.get("/jobs/new").status_code == 403
    assert send(viewer, filled(world)).status_code == 403
    assert viewer.post(f"/jobs/{job.pk}/cancel").status_code == 403
    assert Job.objects.get().state == JobState.QUEUED


def test_nobody_signs_up(world: World) -> None:
    assert "by invitation" in text_of(Client().get("/accounts/signup/"))


def test_signing_in_and_out(world: World) -> None:
    seed.may_sign_in(world.owner)
    client = Client()
    wrong = client.post("/accounts/login/", {"login": world.owner.email, "password": "wrong"})
    assert 'role="alert"' in text_of(wrong)
    assert f'value="{world.owner.email}"' in text_of(wrong)
    right = client.post("/accounts/login/?next=/jobs/new", {"login": world.owner.email, "password": seed.PASSWORD})
    assert right.status_code == 302
    assert client.get("/jobs/").status_code == 200
    assert client.get("/accounts/password/change/").status_code == 200
    client.post("/accounts/logout/")
    assert client.get("/jobs/").status_code == 302


def test_a_forged_post_is_refused_in_words(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.owner)
    response = send(client, filled(world))
    assert response.status_code == 403
    assert "This form has expired" in text_of(response)
    assert not Job.objects.exists()
