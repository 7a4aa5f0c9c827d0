"""A corpus of malformed and hostile requests: always a problem, never a 5xx, nothing written."""

import json
from typing import Any

import pytest

from backend.accounts.models import Project
from backend.jobs.models import Job
from backend.pools.models import ResourcePool

NUL, SURROGATE, ESCAPE = "a\x00b", "a\ud800b", "a\x1b[31mb"
TEXTS = [NUL, SURROGATE, ESCAPE, "", "x" * 10_000]
NOT_TEXT: list[Any] = [None, True, 7, 1.5, [], {}, ["a"]]
NOT_OBJECTS: list[Any] = [None, True, 7, "x", [], [[]]]
NOT_COUNTS: list[Any] = [None, -1, 10**30, 1e308, "x", [], {}, 1.5]
IDS = ["x", "job_", "job_" + "0" * 20, "job_" + "0" * 200, "%00", "..%2f..%2f", "%ED%A0%80", "%F0%9F%98%80", "'--"]
CURSORS = ["x", "", "é", "bnVsbA", "W10", "WzEsMl0", "=" * 20, "a" * 300, "a" * 301, "\x00", "W1tbW1tbW1tb" * 20]


def refused(response: Any, *statuses: int) -> None:
    assert response.status_code in (statuses or (400, 404, 422)), (response.status_code, response.content)
    assert response["Content-Type"] == "application/problem+json"


@pytest.fixture
def submit(api: Any, project: Project, pool: ResourcePool) -> Any:
    def submit_changed(path: tuple[str, ...], value: Any) -> Any:
        body: dict[str, Any] = {"project": project.pk, "pool": pool.name, "spec": {"name": "Sums"}}
        here = body
        for step in path[:-1]:
            here = here.setdefault(step, {})
        here[path[-1]] = value
        return api.post("/jobs", json.dumps(body).encode())

    return submit_changed


@pytest.mark.parametrize("path", [("project",), ("pool",), ("spec", "name"), ("spec", "model", "source")])
def test_texts(submit: Any, path: tuple[str, ...]) -> None:
    for value in TEXTS + [value for value in NOT_TEXT if not (path == ("pool",) and value is None)]:
        refused(submit(path, value))
    assert not Job.objects.exists()


@pytest.mark.parametrize("text", [NUL, SURROGATE, ESCAPE])
def test_texts_inside_lists_and_names(submit: Any, text: str) -> None:
    refused(submit(("spec", "tags"), [text]))
    refused(submit(("spec", "environment", "params"), {"a": text}))
    refused(submit(("spec", "environment", "params"), {text: 1}))
    refused(submit(("spec", text), 1))
    refused(submit((text,), 1))
    assert not Job.objects.exists()


@pytest.mark.parametrize("value", NOT_OBJECTS)
def test_non_object_body_is_refused(api: Any, submit: Any, value: Any) -> None:
    refused(submit(("spec",), value))
    refused(submit(("spec", "training"), value))
    refused(api.post("/jobs", json.dumps(value).encode()))
    refused(api.post("/jobs:preview", json.dumps(value).encode()))
    assert not Job.objects.exists()


@pytest.mark.parametrize("value", NOT_COUNTS)
@pytest.mark.parametrize("path", [("training", "steps"), ("rollout", "replicas"), ("max_runtime_s",)])
def test_numbers(submit: Any, path: tuple[str, ...], value: Any) -> None:
    refused(submit(("spec", *path), value))
    assert not Job.objects.exists()


@pytest.mark.parametrize("path", [("team",), ("state",), ("spec", "id"), ("spec", "epoch"), ("spec", "training", "x")])
def test_unknown_fields(submit: Any, path: tuple[str, ...]) -> None:
    refused(submit(path, "x"), 422)
    assert not Job.objects.exists()


def test_an_empty_body(api: Any) -> None:
    refused(api.post("/jobs"), 415, 422)
    refused(api.post("/jobs", b""), 422)


@pytest.mark.parametrize("job_id", IDS)
def test_ids(api: Any, job_id: str) -> None:
    for tail in ("", "/events", "/attempts"):
        refused(api.get(f"/jobs/{job_id}{tail}"), 404)
    refused(api.post(f"/jobs/{job_id}/cancel"), 404)


@pytest.mark.parametrize("cursor", CURSORS)
def test_cursors(api: Any, cursor: str) -> None:
    refused(api.get("/jobs", cursor=cursor), 422)


@pytest.mark.parametrize(
    "query",
    [{"limit": value} for value in (0, -1, 201, 10**30, "x", "", "1.5", "NaN")]
    + [{"state": value} for value in ("", "x", "RUNNING", "\x00")]
    + [{"project": value} for value in ("\x00", "x" * 65)],
)
def test_queries_of_the_list(api: Any, query: dict[str, Any]) -> None:
    refused(api.get("/jobs", **query), 422)


@pytest.mark.parametrize("query", [{"after": v} for v in (-1, 2**31, 10**30, "x", "")] + [{"limit": 0}])
def test_queries_of_the_events(api: Any, job: Job, query: dict[str, Any]) -> None:
    refused(api.get(f"/jobs/{job.pk}/events", **query), 422)


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 256])
def test_idempotency_keys(api: Any, project: Project, pool: ResourcePool, key: str) -> None:
    refused(api.post("/jobs", {"project": project.pk, "spec": {"name": "Sums"}}, key=key), 422)
    assert not Job.objects.exists()


def test_template_names(api: Any) -> None:
    for name in ("x", "..%2fjob", "running_sums.json", "%00"):
        refused(api.get(f"/templates/{name}"), 404)
