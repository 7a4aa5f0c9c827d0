"""The API describes itself: every route, every status, every scope."""

from typing import Any

from django.test import Client

from backend.rest import api as rest_api


def test_the_document_is_served_and_names_every_status() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            statuses = {int(status) for status in operation["responses"]}
            assert statuses >= {401, 403, 500, 503}, (method, path)
            assert any(status < 300 for status in statuses), (method, path)
            if "{" in path:
                assert 404 in statuses, (method, path)
            if "requestBody" in operation:
                assert statuses >= {400, 413, 415, 422}, (method, path)
            assert operation["security"], (method, path)
            assert operation["summary"] and not operation["operationId"].endswith("_2")


def test_errors_are_documented_as_problems() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    problem = document["paths"]["/api/v1/jobs"]["post"]["responses"]["422"]["content"]
    assert list(problem) == ["application/problem+json"]


def test_the_page_needs_no_other_host() -> None:
    page = Client().get("/api/v1/docs").content.decode()
    assert "openapi.json" in page and "cdn." not in page and "https://" not in page


def test_a_whole_spec_is_described(db: None) -> None:
    schemas: dict[str, Any] = rest_api.get_openapi_schema()["components"]["schemas"]
    assert "JobSpec" in schemas and "Problem" in schemas
