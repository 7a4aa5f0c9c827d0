"""Parameters of environments: a spec is refused for what the environment would refuse, each at its own path."""

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from engine.environments.params import ParamReader
from engine.environments.registry import ENVIRONMENT_NAMES, make_environment
from engine.spec.assets.named_assets import named_assets
from engine.spec.environments.gym_tasks import GYM_TASKS
from engine.spec.environments.params import ENVIRONMENTS, REFUSED_TASKS, Param
from engine.spec.job import EnvironmentName, EnvironmentSpec, JobSpec
from tests.engine.spec.environments.gym_table import installed_tasks

README = (Path(__file__).parents[4] / "engine/environments/README.md").read_text(encoding="utf-8")
ROWS = [(name, key, row) for name, entry in ENVIRONMENTS.items() for key, row in entry.params.items()]
CODE = "def prompt(split, ordinal, seed, params): ...\ndef respond(prompt, turns): ..."
COMPANIONS: dict[str, dict[str, Any]] = {
    "held_out_value": {"held_out_column": "split"},
    "median_terms": {"max_terms": 64},
}


def refusals(name: str, params: dict[str, Any]) -> dict[str, str]:
    code = CODE if name in ("graded", "custom") else ""
    try:
        JobSpec.model_validate({"name": "t", "environment": {"name": name, "params": params, "code": code}})
    except ValidationError as failure:
        return {".".join(map(str, error["loc"])): error["msg"] for error in failure.errors()}
    return {}


def with_data(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return {**({"data": "demo/sums"} if name in ("jsonl", "graded") else {}), **params}


def wrong_values(row: Param) -> list[object]:
    match row.kind:
        case "number" | "whole":
            return [row.low - 1, row.high + 1, "many", True]
        case "choice" | "words":
            return ["no such thing", 3]
    return [3, True]


def test_every_environment_has_a_row() -> None:
    assert set(ENVIRONMENTS) == set(get_args(EnvironmentName)) == set(ENVIRONMENT_NAMES)


@pytest.mark.parametrize(("name", "key", "row"), ROWS, ids=[f"{name}-{key}" for name, key, _ in ROWS])
def test_spec_and_environment_refuse_the_same_values(name: str, key: str, row: Param) -> None:
    for value in wrong_values(row):
        params = with_data(name, {**COMPANIONS.get(key, {}), key: value})
        assert refusals(name, params)[f"environment.params.{key}"] == f"{key}: {row.rule}; got {value!r}"
        reader = ParamReader(name, params)
        read = {"number": reader.number, "file": reader.file}.get(row.kind, reader.text)
        with pytest.raises(ValueError, match=f"^{name}: {key}: "):
            read(key)
    right = {"choice": row.choices, "words": row.choices, "number": (row.low, row.high), "whole": (row.low, row.high)}
    for value in right.get(row.kind, (row.default,) if key == "task" else ("text",)):
        errors = refusals(name, with_data(name, {**COMPANIONS.get(key, {}), key: value}))
        assert f"environment.params.{key}" not in errors or "needs corpus" in errors[f"environment.params.{key}"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_explicit_default_param_is_accepted(name: str) -> None:
    params = with_data(
        name, {key: row.default for key, row in ENVIRONMENTS[name].params.items() if not row.is_required}
    )
    assert refusals(name, params) == {}


@pytest.mark.parametrize(
    ("name", "params", "at"),
    [
        ("running_sums", {"median_terms": 9, "max_terms": 5}, "median_terms"),
        ("tool_sums", {"depth": 3}, "depth"),
        ("tools", {"tools": "calculator,search"}, "tools"),
        ("reasoning_gym", {"max_animals": 5}, "max_animals"),
        ("reasoning_gym", {"seed": 5}, "seed"),
        ("reasoning_gym", {"task": "list_functions", "depth": 5}, "depth"),
        ("reasoning_gym", {"task": "chess", "depth": 5}, "task"),
        ("jsonl", {}, "data"),
        ("jsonl", {"data": "demo/sums", "held_out_column": "split", "held_out_share": 0.5}, "held_out_column"),
        ("jsonl", {"data": "demo/sums", "held_out_value": "exam"}, "held_out_value"),
        ("reasoning_gym", {"task": "propositional_logic"}, "task"),
    ],
)
def test_conflicting_params_are_refused_by_both(name: str, params: dict[str, Any], at: str) -> None:
    assert list(refusals(name, params)) == [f"environment.params.{at}"]
    with pytest.raises(ValueError, match=at):
        make_environment(EnvironmentSpec.model_validate({"name": name, "params": params}), seed=0, data_folder=None)


def test_all_wrong_params_are_reported_together() -> None:
    errors = refusals("tool_sums", {"turns": 0, "waits": "long", "depth": 3})
    assert set(errors) == {f"environment.params.{key}" for key in ("turns", "waits", "depth")}


def test_only_own_code_accepts_any_param() -> None:
    assert refusals("custom", {"whatever": "it likes"}) == {}
    for name in set(ENVIRONMENT_NAMES) - {"custom"}:
        found = refusals(name, with_data(name, {"no_such": 1}))
        assert found["environment.params.no_such"].startswith("unknown parameter 'no_such'"), name
        assert "; choose from " in found["environment.params.no_such"], name


@pytest.mark.long
def test_gym_table_matches_the_installed_library() -> None:
    command = "python -m tests.engine.spec.environments.gym_table"
    assert installed_tasks() == GYM_TASKS, f"{command} writes the table"


def test_every_gym_parameter_is_accepted_for_its_task() -> None:
    assert refusals("reasoning_gym", {"task": "leg_counting", "max_animals": 5}) == {}
    for task, names in GYM_TASKS.items():
        if task not in REFUSED_TASKS:
            assert refusals("reasoning_gym", {"task": task, **dict.fromkeys(names, 1)}) == {}, task


def test_accepted_spec_keeps_unknown_params() -> None:
    assert JobSpec.accepted({"name": "t", "environment": {"params": {"terms": 3}}}).environment.params == {"terms": 3}


def test_readme_names_every_parameter() -> None:
    assert not [key for _, key, _ in ROWS if f"`{key}`" not in README]


def test_only_file_params_are_opened_and_resolved() -> None:
    """Opening another text parameter would bypass the resolution among a team's data sets."""
    reader = ParamReader("jsonl", {"data": "questions", "prompt_column": "/etc/passwd"})
    assert reader.file("data") == Path("questions") and reader.file("held_out_data") is None
    with pytest.raises(AssertionError):
        reader.file("prompt_column")
    with pytest.raises(AssertionError):
        reader.text("data")
    environment = {
        "name": "jsonl",
        "params": {"data": "questions", "held_out_data": "others@2", "answer_after": "####"},
    }
    named = named_assets(JobSpec.model_validate({"name": "t", "environment": environment}))
    assert [each.pointer for each in named if each.kind == "data"] == [
        "/environment/params/data",
        "/environment/params/held_out_data",
    ]
