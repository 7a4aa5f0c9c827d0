"""Terminal output is harmless, and exit codes match the errors."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.client.laminar_client.cli.rendering import json_text, plain
from frontend.client.laminar_client.cli.session import EXIT_CODES, exit_code_of
from frontend.client.laminar_client.cli.specs import read_spec, with_setting
from frontend.client.laminar_client.errors import LaminarError, Unreachable, error_of

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
TEXTS = st.text(alphabet=st.characters(codec=None))


@given(TEXTS)
def test_plain_text_holds_nothing_that_moves_a_terminal(text: str) -> None:
    assert not HARMFUL.search(plain(text, lines=True))
    assert "\n" not in plain(text)


def test_an_escape_sequence_is_shown_and_not_obeyed() -> None:
    assert plain("\x1b[2Jname\x9b1m\u202e") == "\\x1b[2Jname\\x9b1m\\u202e"
    assert plain("Größe, 日本語, مرحبا") == "Größe, 日本語, مرحبا"


@given(st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_json_is_harmless_and_says_the_same(document: dict[str, str]) -> None:
    for text in (json_text(document), json_text(document, indent=2)):
        assert not HARMFUL.search(text)
        assert json.loads(text) == document


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "malformed", 2),
        (422, "invalid", 2),
        (404, "not_found", 3),
        (401, "unauthenticated", 4),
        (403, "denied", 4),
        (409, "invalid_state", 5),
        (412, "changed", 5),
        (425, "being_written", 5),
        (409, "key_ceiling", 6),
        (402, "budget", 6),
        (429, "too_many_requests", 6),
        (500, "internal_error", 7),
        (503, "unavailable", 7),
    ],
)
def test_the_exit_code_tells_the_kind_of_refusal(status: int, code: str, exit_code: int) -> None:
    assert exit_code_of(error_of(status, {"code": code})) == exit_code
    assert exit_code in EXIT_CODES


def test_no_answer_and_anything_else_have_codes_of_their_own() -> None:
    assert exit_code_of(Unreachable("x")) == 7
    assert exit_code_of(LaminarError("x")) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"name": "Sums", "training": {"steps": 5}}'),
        ("a.toml", 'name = "Sums"\n[training]\nsteps = 5'),
        ("a.yaml", "name: Sums\ntraining: {steps: 5}"),
        ("unknown", 'name = "Sums"\ntraining.steps = 5'),
    ],
)
def test_a_spec_is_the_same_in_every_language(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_spec(str(tmp_path / name)) == {"name": "Sums", "training": {"steps": 5}}


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.json", "[1]"), ("a.toml", "= 1"), ("a.yaml", "{")])
def test_a_broken_file_is_wrong_use(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(click.UsageError):
        read_spec(str(tmp_path / name))
    with pytest.raises(click.UsageError):
        read_spec(str(tmp_path / "absent.json"))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.steps=20", {"name": "a", "training": {"steps": 20, "seed": 1}}),
        ("name=b c", {"name": "b c", "training": {"steps": 5, "seed": 1}}),
        ("x.y.z=true", {"name": "a", "training": {"steps": 5, "seed": 1}, "x": {"y": {"z": True}}}),
        ("name=", {"name": "", "training": {"steps": 5, "seed": 1}}),
    ],
)
def test_a_setting_changes_its_place_and_nothing_else(setting: str, expected: dict[str, Any]) -> None:
    spec = {"name": "a", "training": {"steps": 5, "seed": 1}}
    assert with_setting(spec, setting) == expected
    assert spec["training"] == {"steps": 5, "seed": 1}


@pytest.mark.parametrize("setting", ["steps", "=1", "a..b=1", "name.first=1"])
def test_a_setting_without_a_place_is_wrong_use(setting: str) -> None:
    with pytest.raises(click.UsageError):
        with_setting({"name": "a"}, setting)
