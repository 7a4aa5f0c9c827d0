"""A refused field's message states what is accepted and the value given."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.job import JobSpec
from engine.spec.settings.invalid_fields import error_lines, field_message, joined_messages

SPEC: dict[str, Any] = {"name": "sums", "model": {"source": "demo"}, "environment": {"name": "running_sums"}}


def message_of(section: str, settings: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(SPEC | {section: SPEC.get(section, {}) | settings})
    (error,) = refused.value.errors()
    return field_message(error, error["input"])


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("training", {"steps": -1}, "must be at least 0; got -1"),
        ("optimizer", {"learning_rate": 7}, "must be at most 1; got 7"),
        ("training", {"steps": "many"}, "must be a whole number; got many"),
        ("training", {"steps": None}, "must be a whole number; got null"),
        ("training", {"steps": {}}, "must be a whole number; got an object"),
        ("training", {"step": 3}, "unknown field: check its name, or remove it"),
        ("trainer", {"backend": "jax"}, "must be one of 'torch' or 'deepspeed'; got jax"),
        ("rollout", {"stop": "###"}, "must be a list; got ###"),
        ("rollout", {"temperature": float("nan")}, "must be a number; got nan"),
    ],
)
def test_message_has_rule_and_value(section: str, settings: dict[str, Any], message: str) -> None:
    assert message_of(section, settings) == message


def test_missing_section_is_required() -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({key: value for key, value in SPEC.items() if key != "name"})
    assert error_lines(refused.value, whole="spec") == ["name: is required"]


def test_own_validator_keeps_its_message() -> None:
    assert message_of("training", {"mini_batches": 1000}).startswith("training.mini_batches must be at most")


def test_long_value_is_shortened() -> None:
    message = message_of("trainer", {"backend": "x" * 1000})
    assert message.endswith("; got " + "x" * 39 + "…")


def test_length_is_shown_instead_of_a_long_text() -> None:
    error = {"type": "string_too_long", "ctx": {"max_length": 120}, "msg": ""}
    assert field_message(error, "x" * 1000) == "must have at most 120 characters; got 1,000"
    assert field_message(error) == "must have at most 120 characters"


def test_alternatives_of_a_union_share_the_value() -> None:
    assert joined_messages(["must be a number; got x", "must be null; got x"]) == "must be a number or null; got x"
    assert joined_messages(["must be a number; got x", "unknown field"]) == "must be a number; got x; or: unknown field"
