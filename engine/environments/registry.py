"""Environments by name: the one place that knows them all.

Invariant: an unknown name or parameter is a `ValueError` that lists what would be accepted; so is a machine without a
sandbox, where the environment needs one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from engine.environments.border import sound_prompt
from engine.environments.calls import MARKS, calls_by
from engine.environments.custom import Custom
from engine.environments.data_source import located_data
from engine.environments.graded import Graded
from engine.environments.gym import ReasoningGym
from engine.environments.jsonl import Jsonl
from engine.environments.params import ParamReader
from engine.environments.port import Environment, GraderError, Prompt, Role, Tool
from engine.environments.questions.asked import Accept
from engine.environments.questions.params import DataParams
from engine.environments.running_sums import RunningSums
from engine.environments.tool_sums import ToolSums
from engine.environments.tools import Tools, with_rules
from engine.spec.environment_params import TOOLS
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
    """Who says, to a chat template, what the environment answers to a turn; None: nobody, it has one turn. A custom one
    may choose another."""
    return _OBSERVES.get(spec.name)


def told_tools(spec: EnvironmentSpec) -> tuple[Tool, ...]:
    """Those that a chat template is to tell the model of, by the environment's parameters."""
    is_told = spec.name == Tools.name and spec.params.get("calls", MARKS) != MARKS
    return calls_by(str(spec.params["calls"])).described(TOOLS[:1]) if is_told else ()


def has_questions(spec: EnvironmentSpec) -> bool:
    """Of a customer's files."""
    return spec.name in (Jsonl.name, Graded.name, Tools.name) and bool(spec.params.get("data"))


def read_questions(spec: EnvironmentSpec, *, data_folder: Path | None, accept: Accept) -> None:
    """All, each shown to `accept` as its environment asks it. Raises `ValueError`, which names every bad row."""
    located = located_data(spec, data_folder)
    uses_tools = spec.name == Tools.name
    reader = ParamReader(spec.name, located.params)
    data = DataParams.of(reader, all_to_judge=spec.name == Graded.name, brings_tools=not uses_tools)
    calls = calls_by(str(spec.params.get("calls", MARKS)))

    def as_asked(asked: Prompt) -> Prompt:
        try:
            return sound_prompt(with_rules(asked, calls, TOOLS) if uses_tools else asked)
        except GraderError as error:
            raise ValueError(str(error)) from error

    data.opened(seed=0, accept=lambda asked: accept(as_asked(asked)))


def make_environment(spec: EnvironmentSpec, *, seed: int, data_folder: Path | None) -> Environment:
    """With a data folder, files are named and lie there; without one (`python -m engine run`) they are paths."""
    if spec.name not in _MAKERS:
        raise ValueError(f"environment: unknown name {spec.name!r}; choose from {', '.join(ENVIRONMENT_NAMES)}")
    return _MAKERS[spec.name](seed, located_data(spec, data_folder))
