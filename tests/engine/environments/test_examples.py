"""The stored examples are what the environments return today."""

import json

import pytest

from engine.environments.examples import FILE, examples, run_example
from engine.spec.environments.params import ENVIRONMENTS
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
SHOWN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_environment_has_an_example() -> None:
    assert set(SHOWN) == set(examples()) == set(ENVIRONMENTS)


@pytest.mark.long_except("running_sums", "tool_sums", "jsonl", "graded", "tools", "custom")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_stored_example_is_what_the_environment_returns(name: str, request: pytest.FixtureRequest) -> None:
    if name in ("reasoning_gym", "graded", "custom"):
        request.getfixturevalue("sandbox")
    assert run_example(name) == SHOWN[name]
    good, poor = SHOWN[name]["answers"]
    assert good["reward"] == 1.0 > poor["reward"]
