"""An invalid field's message states what is accepted and the value given, whichever part of the request has it."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from pydantic import ValidationError

from backend.accounts.operators.people import CannotReset
from backend.budgets.api import LimitIn
from backend.errors import FieldError, Invalid
from backend.usage.pricing.prices_api import PriceIn
from engine.spec.settings.invalid_fields import error_lines, field_message
from tests.backend.api.test_problems import problem


def messages(response: Any) -> dict[str, str]:
    return {each["pointer"]: each["message"] for each in problem(response, 422, "invalid")["errors"]}


def test_fields_of_a_body(api: Any) -> None:
    spec = {"name": "", "training": {"steps": "many"}, "environment": {"params": {"a": {}}}, "modle": {}}
    assert messages(api.post("/jobs", {"spec": spec, "project": 7})) == {
        "/project": "must be a string; got 7",
        "/spec/name": "must not be empty",
        "/spec/training/steps": "must be a whole number; got many",
        "/spec/environment/params/a": "must be true or false, a whole number, a number or a string; got an object",
        "/spec/modle": "unknown field: check its name, or remove it",
    }


@pytest.mark.parametrize(("body", "message"), [({}, "is required"), ([], "must be an object; got a list")])
def test_a_body_that_lacks_its_fields(api: Any, body: Any, message: str) -> None:
    assert message in messages(api.post("/projects", body)).values()


def test_parameters_of_a_query(api: Any) -> None:
    assert messages(api.get("/jobs?limit=0")) == {"/query/limit": "must be at least 1; got 0"}
    assert messages(api.get("/jobs?since=soon"))["/query/since"].endswith("; got soon")


def test_patterns_that_the_document_lacks(api: Any) -> None:
    refused = api.post("/invitations", {"email": "ada", "role": "member"})
    assert messages(refused) == {"/email": "must be an address such as ada@example.org; got ada"}
    with pytest.raises(ValidationError) as budget:
        LimitIn.model_validate({"amount": "many"})
    with pytest.raises(ValidationError) as price:
        PriceIn.model_validate({"per_device_second": "-1", "currency": "euro"})
    for line in error_lines(budget.value, whole="") + error_lines(price.value, whole=""):
        assert "must be a decimal as a string" in line or "such as EUR" in line


def test_a_header_is_not_repeated(api: Any) -> None:
    refused = api.post("/jobs", {"spec": {}}, headers={"Idempotency-Key": "a secret that has spaces"})
    assert "secret" not in refused.content.decode() and refused.status_code == 422


def test_every_pattern_of_a_request_is_put_into_words() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    bodies = {name for name in document["components"]["schemas"] if not name.endswith("Out")}
    asked = [document["paths"], *(document["components"]["schemas"][name] for name in bodies)]
    assert [each for each in sorted(set(patterns(asked))) if not is_in_words(each)] == []


def is_in_words(pattern: str) -> bool:
    error = {"type": "string_pattern_mismatch", "ctx": {"pattern": pattern}, "msg": ""}
    return not field_message(error).startswith("must match")


def patterns(node: Any) -> Iterator[str]:
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from patterns(child)
    if isinstance(node, dict) and isinstance(node.get("pattern"), str):
        yield node["pattern"]


@pytest.mark.parametrize(
    ("pointer", "message", "sentence"),
    [
        ("/url", "must begin with https://", "URL must begin with https://."),
        ("/expires_at", "must be in the future; got 2020", "Expires at must be in the future; got 2020."),
        ("/spec/training/steps", "training.steps must not exceed 5", "training.steps must not exceed 5."),
        ("/scopes", "unknown scope everything", "Unknown scope everything."),
        ("/scopes", "quota:write is not among yours", "quota:write is not among yours."),
        ("/amount", "Budget: enter a number.", "Budget: enter a number."),
    ],
)
def test_sentence_on_a_page_names_the_field(pointer: str, message: str, sentence: str) -> None:
    refusal = Invalid(errors=[FieldError(pointer=pointer, code="wrong", message=message)])
    assert refusal.sentences == [sentence]


def test_wrapped_docstring_becomes_one_line() -> None:
    assert "\n" not in CannotReset().detail and "verified (run `manage.py" in CannotReset().detail
