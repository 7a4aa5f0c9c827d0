"""The API's description is complete and true: every route, every status, every scope, every name."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel

from backend.accounts.keys.bearer import ApiKeyAuth
from backend.accounts.keys.scopes import SCOPES
from backend.api.handlers import _BY_STATUS
from backend.errors import Refusal
from backend.pages.programs.shapes import field_of, parts_of
from backend.rest import api as rest_api
from backend.rest import operation_id

ANYWHERE = {401, 403, 429, 500, 503}
"""No key, insufficient scope, rate limit, internal error, unavailable."""
WITH_A_BODY = {400, 413, 415, 422}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    schema: dict[str, Any] = Client().get("/api/v1/openapi.json").json()
    return schema


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def with_references(document: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(schema | {"components": document["components"]})


@pytest.mark.long
def test_the_document_is_openapi_3_1_with_one_security_scheme(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"] == {"ApiKeyAuth": {"type": "http", "scheme": "bearer"}}


def test_document_is_made_once() -> None:
    """It takes a second of a core, and needs no key."""
    assert rest_api.get_openapi_schema(path_prefix="/") is rest_api.get_openapi_schema(path_prefix="/")


def test_no_two_shapes_have_one_name(document: dict[str, Any]) -> None:
    """The document has one entry per name: one of two shapes would be described as the other."""
    ours = defaultdict[str, set[str]](set)
    for model in all_models(BaseModel):
        if model.__module__.startswith(("backend.", "engine.")):
            ours[model.__name__].add(model.__module__)
    named = {name: modules for name, modules in ours.items() if name in document["components"]["schemas"]}
    assert len(named) > 100
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def all_models(above: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in above.__subclasses__():
        yield model
        yield from all_models(model)


def test_every_operation_names_every_status_that_can_happen(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        statuses = {int(status) for status in operation["responses"]}
        assert statuses >= ANYWHERE, (method, path)
        assert any(status < 300 for status in statuses), (method, path)
        assert operation["security"] == [{"ApiKeyAuth": []}], (method, path)
        if "{" in path:
            assert 404 in statuses, (method, path)
        if "requestBody" in operation:
            assert statuses >= WITH_A_BODY, (method, path)
        typed = [given for given in operation.get("parameters", []) if given["in"] != "path"]
        if typed:
            assert 422 in statuses, (method, path)
        if any(given["name"] == "If-Match" for given in typed):
            assert 412 in statuses, (method, path)
        if any(given["name"] == "Idempotency-Key" for given in typed):
            assert 409 in statuses, (method, path)


def test_every_operation_has_a_summary_and_a_name_that_stays(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for method, path, operation in operations(document):
        assert operation["summary"], (method, path)
        assert operation["operationId"] == operation_id(method, path.removeprefix("/api/v1"))
        assert re.fullmatch(r"[a-z][a-z0-9_]*", operation["operationId"])


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/jobs", "get_jobs"),
        ("GET", "/jobs/{job_id}", "get_job"),
        ("POST", "/jobs:preview", "post_jobs_preview"),
        ("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", "post_webhook_delivery_redeliver"),
        ("DELETE", "/api-keys/{key_id}", "delete_api_key"),
    ],
)
def test_names_are_made_of_method_and_address(method: str, path: str, name: str) -> None:
    assert operation_id(method, path) == name


def test_every_error_is_documented_as_a_problem(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (method, path, status)


def test_every_schema_is_a_schema_and_every_example_fits_it(document: dict[str, Any]) -> None:
    num_examples = 0
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        for field, inner in [("", schema), *schema.get("properties", {}).items()]:
            for example in inner.get("examples", []) if isinstance(inner, dict) else []:
                num_examples += 1
                errors = list(with_references(document, inner).iter_errors(example))
                assert not errors, (name, field, errors)
    for method, path, operation in operations(document):
        for given in operation.get("parameters", []):
            for example in given["schema"].get("examples", []):
                assert not list(with_references(document, given["schema"]).iter_errors(example)), (method, path)
    assert num_examples, "there is no example"


def test_every_default_fits_its_schema(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        for given in operation.get("parameters", []):
            schema = given["schema"]
            if schema.get("default") is not None:
                assert not list(with_references(document, schema).iter_errors(schema["default"])), (method, path)


def test_a_stream_is_documented_as_one(document: dict[str, Any]) -> None:
    job = document["paths"]["/api/v1/jobs/{job_id}/events"]["get"]["responses"]["200"]["content"]
    assert set(job) == {"application/json", "text/event-stream"}
    team = document["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]
    assert set(team) == {"text/event-stream"}


def test_every_error_class_of_ours_has_a_message_and_a_code() -> None:
    def below(kind: type[Refusal]) -> Iterator[type[Refusal]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    for kind in below(Refusal):
        assert (kind.__doc__ or "").strip() and re.fullmatch(r"[a-z_]+", kind.code), kind
        assert 400 <= kind.status < 600, kind
    assert _BY_STATUS, "Django's own responses have our texts too"


def test_no_path_is_in_two_routers() -> None:
    """Django would only try the first, and answer 405 for methods of the second."""
    addresses = [bound.prefix + path for bound in rest_api._get_bound_routers() for path in bound.path_operations]
    assert len(addresses) == len(set(addresses))


@pytest.mark.long
def test_the_page_needs_no_other_host() -> None:
    page = Client().get("/api/v1/docs").content.decode()
    assert "openapi.json" in page and "cdn." not in page and "https://" not in page


@pytest.mark.long
def test_reference_page_has_every_route_shape_and_scope(document: dict[str, Any]) -> None:
    page = Client().get("/api/v1/docs").content.decode()
    places = re.findall(r' id="([^"]+)"', page)
    assert len(set(places)) == len(places)
    routes = {operation["operationId"] for methods in document["paths"].values() for operation in methods.values()}
    assert routes | {f"shape-{name}" for name in document["components"]["schemas"]} <= set(places)
    assert {place for place in re.findall(r'href="#([^"]+)"', page) if place != "main"} <= set(places)
    [paused] = re.findall(r'id="post_job_pause">.*?</details>', page, re.S)
    assert "<code>jobs:write</code>" in paused and "/api/v1/jobs/{job_id}/pause" in paused


def test_types_are_described_in_words() -> None:
    def words(schema: dict[str, Any]) -> str:
        return "".join(part.text for part in parts_of(schema))

    assert words({"anyOf": [{"$ref": "#/components/schemas/Job"}, {"type": "null"}]}) == "Job or null"
    assert words({"type": "array", "items": {"type": "integer"}}) == "list of whole number"
    assert words({"prefixItems": [{"type": "integer"}, {"type": "number"}]}) == "[whole number, number]"
    assert words({"type": "string", "enum": ["a", "b"]}) == "“a” or “b”"
    field = field_of("n", {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}, required=False)
    assert field.bounds == "at least 1, at most 9, default 3"


def test_a_whole_spec_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert "JobSpec" in schemas and "Problem" in schemas


def test_a_route_asks_for_one_known_scope_or_none() -> None:
    for bound in rest_api._get_bound_routers():
        for path, view in bound.path_operations.items():
            for operation in view.operations:
                (auth,) = operation.auth_callbacks
                assert isinstance(auth, ApiKeyAuth), path
                assert auth.scope is None or auth.scope in SCOPES, path
