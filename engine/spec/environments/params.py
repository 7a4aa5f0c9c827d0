"""The environments and their parameters: types, ranges and defaults.

The validation of a spec, the form, the environments page and the environments themselves read this table.

Invariants:
- an environment would refuse before its first prompt whatever these rules refuse; its further rules need its files or
  its code;
- a parameter without a row is refused, unless the environment passes unknown parameters on (`is_open`); those of
  reasoning_gym must be parameters of the task. Only `custom` accepts any name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from engine.spec.environments.gym_tasks import GYM_TASKS

Value = str | int | float | bool
Kind = Literal["text", "file", "whole", "number", "choice", "words"]
"""file: the name of a data set, which both planes resolve; the environment receives the path of its file."""

VERIFIERS: Final = ("exact", "numeric", "regex", "math_verify", "unit_tests")
TOOLS: Final = ("calculator", "search", "python")
CALLS: Final = ("marks", "tool_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    kind: Kind
    default: Value
    about: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    is_required: bool = False

    @property
    def rule(self) -> str:
        match self.kind:
            case "choice":
                return f"one of {', '.join(filter(None, self.choices))}"
            case "words":
                return f"a comma-separated list of {', '.join(self.choices)}"
            case "number":
                return f"a number from {self.low:g} to {self.high:g}"
            case "whole":
                return f"a whole number from {self.low:g} to {self.high:g}"
        return "a text"

    def wrong(self, value: object) -> str | None:
        """What is wrong with the value; None: it is accepted."""
        return None if self._accepts(value) else f"{self.rule}; got {value!r}"

    def _accepts(self, value: object) -> bool:
        if isinstance(value, bool):
            return False
        match self.kind:
            case "choice":
                return value in self.choices
            case "words":
                return value == "" or (isinstance(value, str) and set(words_of(value)) <= set(self.choices))
            case "number":
                return isinstance(value, int | float) and self.low <= value <= self.high
            case "whole":
                return isinstance(value, int | float) and self.low <= value <= self.high and value == int(value)
        return isinstance(value, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentEntry:
    title: str
    about: str
    turns: str
    params: Mapping[str, Param]
    is_open: bool = False
    """Parameters without a row are passed to what the environment runs."""


def files_of(environment: str) -> tuple[str, ...]:
    """The environment's parameters that name data sets."""
    return tuple(name for name, row in ENVIRONMENTS[environment].params.items() if row.kind == "file")


def words_of(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _text(default: str, about: str) -> Param:
    return Param(kind="text", default=default, about=about)


def _file(about: str, *, is_required: bool = False) -> Param:
    return Param(kind="file", default="", about=about, is_required=is_required)


def _number(default: float, low: float, high: float, about: str) -> Param:
    return Param(kind="number", default=default, low=low, high=high, about=about)


def _whole(default: int, low: int, high: int, about: str) -> Param:
    return Param(kind="whole", default=default, low=low, high=high, about=about)


def _choice(default: str, choices: tuple[str, ...], about: str) -> Param:
    return Param(kind="choice", default=default, choices=choices, about=about)


_QUESTIONS: Final[Mapping[str, Param]] = {
    "data": _file("The questions: the built-in demo/sums or a data set of your team, NAME or NAME@VERSION."),
    "prompt_column": _text("prompt", "The column with the question."),
    "answer_column": _text("answer", "The column with the expected answer."),
    "tools_column": _text("tools", "The column with the tools for the chat template."),
    "held_out_share": _number(0.125, 0.001, 0.9, "The share of questions that is used for evaluations only."),
    "held_out_column": _text("", "Instead of a share: the column that marks the held-out rows."),
    "held_out_value": _text("test", "The value of that column in held-out rows."),
    "held_out_data": _file("Instead of a share: a separate data set of held-out questions."),
}
_DUE: Final = _file(_QUESTIONS["data"].about, is_required=True)
_VERIFIER: Final[Mapping[str, Param]] = {
    "verifier": _choice("exact", VERIFIERS, "The rule that decides whether an answer is right."),
    "answer_after": _text("", "Check only the text after the last such marker, for example ####."),
    "end_text": _text("", "Text to remove from the end first, for example <|im_end|>."),
    "tolerance": _number(1e-9, 0, 1, "For numeric: the largest error of a number; relative above 1."),
    "test_timeout_s": _number(10.0, 0.1, 600, "For unit_tests: seconds for all tests of one answer."),
}
_WAIT_S: Final = 3_600

ENVIRONMENTS: Final[Mapping[str, EnvironmentEntry]] = {
    "running_sums": EnvironmentEntry(
        title="Running sums",
        about="Additions with every intermediate sum. The built-in model is trained for them.",
        turns="one",
        params={
            "median_terms": _number(6.0, 2, 64, "The median of numbers per question."),
            "sigma": _number(0.95, 0, 3, "The spread of that number; 0: always the same."),
            "max_terms": _whole(64, 2, 64, "The most numbers in a question."),
        },
    ),
    "tool_sums": EnvironmentEntry(
        title="Sums with a tool",
        about="Running sums over several turns: after each answer a tool waits, then returns the next number.",
        turns="several",
        params={
            "turns": _whole(4, 1, 63, "Turns per trajectory."),
            "waits": _choice("tailed", ("tailed", "constant", "none"), "The distribution of the tool's waits."),
            "wait_mean_s": _number(0.1, 0, _WAIT_S, "The mean wait in seconds."),
            "wait_sigma": _number(1.2, 0, 3, "For tailed: the spread of the waits; larger: longer tail."),
        },
    ),
    "reasoning_gym": EnvironmentEntry(
        title="Reasoning gym",
        about="Any task of the reasoning-gym library, graded by the library's scorer.",
        turns="one",
        params={"task": _text("chain_sum", "The task's name. All other parameters are passed to the task.")},
        is_open=True,
    ),
    "jsonl": EnvironmentEntry(
        title="Questions from a file",
        about="Your questions and answers, checked by a rule of your choice.",
        turns="one",
        params={**_QUESTIONS, "data": _DUE, **_VERIFIER},
    ),
    "graded": EnvironmentEntry(
        title="Questions from a file, your own judge",
        about="Your questions, and a Python function of yours that returns the reward of an answer.",
        turns="any number",
        params={**_QUESTIONS, "data": _DUE},
    ),
    "tools": EnvironmentEntry(
        title="Questions with tools",
        about="Questions to answer with a calculator, a search or Python. The model must know how to call tools.",
        turns="several",
        params={
            **{name: row for name, row in _QUESTIONS.items() if name != "tools_column"},
            "tools": Param(
                kind="words",
                default="",
                choices=TOOLS,
                about="The tools that the model may use. Empty: the calculator, and the search if corpus is set.",
            ),
            "calls": _choice("marks", CALLS, "The syntax of a call: as the question explains it, or the model's own."),
            "corpus": _file("The documents to search: a data set of titles and texts."),
            "max_turns": _whole(6, 1, 100, "Turns until an answer is due; without one the reward is 0."),
            "tool_timeout_s": _number(10.0, 0.1, 600, "Time limit of a program in seconds."),
            "wait_median_s": _number(0.0, 0, _WAIT_S, "The median of an extra wait before each result, in seconds."),
            "wait_sigma": _number(1.2, 0, 3, "The spread of the waits; larger: longer tail."),
            **_VERIFIER,
            "verifier": _choice(
                "", ("", *VERIFIERS), "The rule that decides if an answer is right. Empty: numeric, or exact with data."
            ),
        },
    ),
    "custom": EnvironmentEntry(
        title="An environment of your own",
        about="Your Python file writes the prompts, replies over any number of turns and returns the reward.",
        turns="any number",
        params={},
        is_open=True,
    ),
}

REFUSED_TASKS: Final[Mapping[str, str]] = {
    "propositional_logic": "one answer, (P ∨ Q), is right for 83 of 100 of its questions",
}
"""Tasks of reasoning-gym 0.1.25 where a guess is right as often as an answer."""


def wrong_params(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """(parameter, error) of each wrong parameter; rules over several apply only if each is right by itself."""
    wrong = list(_check_each(environment, params))
    yield from wrong or _check_together(environment, params)


def _check_each(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    entry = ENVIRONMENTS[environment]
    for name, value in params.items():
        row = entry.params.get(name)
        if row is not None:
            if (wrong := row.wrong(value)) is not None:
                yield name, f"{name}: {wrong}"
        elif not entry.is_open:
            accepted = ", ".join(entry.params)
            yield name, f"unknown parameter {name!r}; choose from {accepted}"
    for name, row in entry.params.items():
        if row.is_required and params.get(name, "") == "":
            yield name, f"{name}: a data set is required"


def _check_together(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    if environment == "running_sums":
        median, most = float(params.get("median_terms", 6.0)), float(params.get("max_terms", 64))
        if median > most:
            yield "median_terms", f"median_terms: at most max_terms, which is {most:g}; got {median:g}"
    if environment == "reasoning_gym":
        yield from check_task(params)
    if environment == "tools" and "search" in words_of(str(params.get("tools", ""))) and not params.get("corpus"):
        yield "tools", "tools: search needs corpus, a data set of documents"
    if "held_out_column" in ENVIRONMENTS[environment].params:
        yield from check_held_out(params)


def check_task(params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """(parameter, error) of an unknown or refused task, or of parameters that the task does not have."""
    task = str(params.get("task", ENVIRONMENTS["reasoning_gym"].params["task"].default))
    if task in REFUSED_TASKS:
        yield "task", f"task: {task} cannot be trained: {REFUSED_TASKS[task]}; choose another"
        return
    if task not in GYM_TASKS:
        choices = ", ".join(each for each in GYM_TASKS if each not in REFUSED_TASKS)
        yield "task", f"task: unknown name {task!r}; choose from {choices}"
        return
    for name in params:
        if name != "task" and name not in GYM_TASKS[task]:
            accepted = ", ".join(GYM_TASKS[task]) or "none"
            yield name, f"unknown parameter {name!r} of the task {task}; choose from {accepted}"


def check_held_out(params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """(parameter, error) of contradicting ways to hold out questions."""
    ways = [
        name
        for name in ("held_out_share", "held_out_column", "held_out_data")
        if params.get(name, _QUESTIONS[name].default) != _QUESTIONS[name].default
    ]
    if len(ways) > 1:
        yield ways[1], f"{ways[1]}: set only one way to hold out rows, got {ways[0]} too"
    if params.get("held_out_value", "test") != "test" and not params.get("held_out_column"):
        got = params["held_out_value"]
        yield "held_out_value", f"held_out_value: requires held_out_column, got {got!r}"
