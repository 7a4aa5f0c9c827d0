"""Environments by name: the one place that lists them all.

Invariant: an unknown name or parameter raises a `ValueError` that lists what is accepted. A machine without a sandbox
raises one too, if the environment needs a sandbox.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from engine.environments.border import sound_prompt
from engine.environments.custom import Custom
from engine.environments.data_source import locate_data
from engine.environments.graded import Graded
from engine.environments.gym import ReasoningGym
from engine.environments.jsonl import Jsonl
from engine.environments.params import ParamReader
from engine.environments.port import Environment, GraderError, Prompt, Role, Tool
from engine.environments.questions.data_set import Accept
from engine.environments.questions.params import DataParams
from engine.environments.running_sums import RunningSums
from engine.environments.tools.calls import MARKS, calls_by
from engine.environments.tools.tool_sums import ToolSums
from engine.environments.tools.tools import Tools, with_rules
from engine.spec.environments.params import TOOLS
from engine.spec.job import EnvironmentSpec

_Maker = Callable[[int, EnvironmentSpec], Environment]

_MAKERS: Final[Mapping[str, _Maker]] = {
    RunningSums.name: lambda seed, spec: RunningSums.from_params(seed, spec.params),
    ToolSums.name: lambda seed, spec: ToolSums.from_params(seed, spec.params),
    ReasoningGym.name: lambda seed, spec: ReasoningGym.from_params(seed, spec.params, spec.turn_timeout_s),
    Jsonl.name: lambda seed, spec: Jsonl.from_params(seed, spec.params, spec.turn_timeout_s),
    Graded.name: lambda seed, spec: Graded.from_params(seed, spec.params, spec.code, spec.turn_timeout_s),
    Tools.name: lambda seed, spec: Tools.from_params(seed, spec.params, spec.turn_timeout_s),
    Custom.name: lambda seed, spec: Custom(
        seed=seed, code=spec.code, params=spec.params, timeout_s=spec.turn_timeout_s
    ),
}
ENVIRONMENT_NAMES: Final[tuple[str, ...]] = tuple(sorted(_MAKERS))


_OBSERVES: Final[Mapping[str, Role]] = {
    ToolSums.name: "tool",
    Tools.name: "tool",
    Graded.name: "user",
    Custom.name: "user",
}


def observed_as(spec: EnvironmentSpec) -> Role | None:
    """The role of the environment's observations under a chat template, which a customer's code may override. None:
    the environment has one turn."""
    return _OBSERVES.get(spec.name)


def described_tools(spec: EnvironmentSpec) -> tuple[Tool, ...]:
    """The tools that the environment's parameters have a chat template describe."""
    has_schemas = spec.name == Tools.name and spec.params.get("calls", MARKS) != MARKS
    return calls_by(str(spec.params["calls"])).tool_schemas(TOOLS[:1]) if has_schemas else ()


def has_questions(spec: EnvironmentSpec) -> bool:
    """True if the questions come from a customer's files."""
    return spec.name in (Jsonl.name, Graded.name, Tools.name) and bool(spec.params.get("data"))


def read_questions(spec: EnvironmentSpec, *, data_folder: Path | None, accept: Accept) -> None:
    """Reads all questions and calls `accept` with each final prompt. Raises a `ValueError` that names the bad rows."""
    located = locate_data(spec, data_folder)
    uses_tools = spec.name == Tools.name
    reader = ParamReader(spec.name, located.params)
    data = DataParams.of(reader, all_to_judge=spec.name == Graded.name, brings_tools=not uses_tools)
    calls = calls_by(str(spec.params.get("calls", MARKS)))

    def final(prompt: Prompt) -> Prompt:
        try:
            return sound_prompt(with_rules(prompt, calls, TOOLS) if uses_tools else prompt)
        except GraderError as error:
            raise ValueError(str(error)) from error

    data.open_questions(seed=0, accept=lambda prompt: accept(final(prompt)))


def make_environment(spec: EnvironmentSpec, *, seed: int, data_folder: Path | None) -> Environment:
    """`data_folder`: the files' names are resolved there; None (`python -m engine run`): they are paths."""
    if spec.name not in _MAKERS:
        raise ValueError(f"environment: unknown name {spec.name!r}; choose from {', '.join(ENVIRONMENT_NAMES)}")
    return _MAKERS[spec.name](seed, locate_data(spec, data_folder))
