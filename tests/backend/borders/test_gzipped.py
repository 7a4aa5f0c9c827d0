"""Responses are compressed where that reveals nothing, and decompress to the same."""

import gzip
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory

from backend.accounts.models import User
from backend.borders.gzipped import gzip_answers
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job
from tests.backend.conftest import NOW, Api

ASKS = {"Accept-Encoding": "gzip, deflate, br"}


@pytest.fixture
def page(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def is_small(answer: Any) -> bool:
    """Also checks the Vary header for caches."""
    is_problem = answer["Content-Type"].startswith("application/problem+json")
    assert is_problem or "Accept-Encoding" in answer["Vary"]
    return bool(answer.headers.get("Content-Encoding") == "gzip")


def test_a_page_and_what_it_pulls_are_small_and_the_same(page: Client, job: Job) -> None:
    with transaction.atomic():
        for _ in range(20):
            locked = locked_job(job.pk)
            record_event(locked, "fault_detected", actor="engine:1", now=NOW, message="no heartbeat for 5 s")
    live = f"/jobs/{job.pk}/live?after=0"
    small, plain = page.get(live, headers=ASKS), page.get(live)
    assert is_small(small) and not is_small(plain)
    assert gzip.decompress(small.content) == plain.content
    assert int(small["Content-Length"]) == len(small.content) < len(plain.content)
    for path in (f"/jobs/{job.pk}/", f"/jobs/{job.pk}/?step=3", "/jobs/?page=1", "/jobs/?part", "/accounts/login/"):
        assert is_small(page.get(path, headers=ASKS, follow=True)), path


@pytest.mark.parametrize("path", ["/jobs/?q=lam_live_a", "/jobs/?x", "/jobs/?page=1a", "/jobs/?page=1&page=k"])
def test_what_repeats_something_of_its_request_is_not_compressed(page: Client, path: str) -> None:
    assert not is_small(page.get(path, headers=ASKS))


def test_neither_is_a_form_or_a_refusal(page: Client, job: Job) -> None:
    sent = page.post("/jobs/new", "name=lam_live_a", "application/x-www-form-urlencoded", headers=ASKS)
    assert sent.status_code == 422 and not is_small(sent)
    refused = page.get("/nothing/lam_live_a", headers=ASKS)
    assert refused.status_code == 404 and not is_small(refused)


def test_the_length_of_one_answer_differs_from_look_to_look(page: Client) -> None:
    assert len({len(page.get("/help/", headers=ASKS).content) for _ in range(12)}) > 1


def test_requests_with_a_key_are_compressed_with_any_query(api: Api, job: Job) -> None:
    headers = {"Authorization": f"Bearer {api.key}", **ASKS}
    assert is_small(api.client.get("/api/v1/jobs?state=queued&limit=50", headers=headers))
    assert not is_small(api.client.get("/api/v1/jobs?state=queued&limit=50", headers=ASKS)), "no key"


def test_an_answer_with_a_tag_keeps_its_tag_and_its_meaning(api: Api, job: Job) -> None:
    headers = {"Authorization": f"Bearer {api.key}", **ASKS}
    read = api.client.get(f"/api/v1/jobs/{job.pk}", headers=headers)
    assert read["ETag"].startswith('"') and not is_small(read)
    write: dict[str, Any] = {"data": {"priority": 3}, "content_type": "application/json"}
    changed = api.client.patch(f"/api/v1/jobs/{job.pk}", headers=headers | {"If-Match": read["ETag"]}, **write)
    assert changed.status_code != 412
    stale = api.client.patch(f"/api/v1/jobs/{job.pk}", headers=headers | {"If-Match": '"0"'}, **write)
    assert stale.status_code == 412


@pytest.mark.parametrize(
    "answer",
    [
        HttpResponse("x" * 5_000, content_type="application/octet-stream"),
        HttpResponse("x" * 900, content_type="text/html"),
        HttpResponse(gzip.compress(b"x" * 5_000), content_type="text/html", headers={"Content-Encoding": "gzip"}),
        StreamingHttpResponse(iter([b"data: 1\n\n"] * 999), content_type="application/json"),
    ],
    ids=["a file", "short already", "compressed already", "a stream"],
)
def test_nothing_is_done_where_nothing_is_gained(answer: HttpResponse | StreamingHttpResponse) -> None:
    before = dict(answer.items())
    content = None if answer.streaming else answer.content
    request: HttpRequest = RequestFactory().get("/", headers=ASKS)
    after = gzip_answers(lambda _: answer)(request)
    assert {name: value for name, value in after.items() if name != "Vary"} == before
    assert content is None or after.content == content  # type: ignore[attr-defined]


@pytest.mark.parametrize("said", ["", "br", "gzip;q=0", "gzip; q=0.0, br"])
def test_client_without_gzip_gets_plain_response(page: Client, said: str) -> None:
    assert not is_small(page.get("/help/", headers={"Accept-Encoding": said}))
