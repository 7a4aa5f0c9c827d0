"""The environments and their parameters: what each takes, from where to where, and what it takes where nothing is said.

Refusals before a job begins, the form, the page of environments and the environments themselves read this table.

Invariants:
- whatever these rules refuse, the environment would refuse before its first prompt; what it refuses besides needs its
  files or its code to be read;
- a parameter without a row is refused, but where an environment hands all others on to what it runs (`is_open`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Value = str | int | float | bool
Kind = Literal["text", "file", "whole", "number", "choice", "words"]
"""file: the name of a data set, which both planes look up; the environment gets the path of its file."""

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
                return f"any of {', '.join(self.choices)}, with commas between"
            case "number":
                return f"a number from {self.low:g} to {self.high:g}"
            case "whole":
                return f"a whole number from {self.low:g} to {self.high:g}"
        return "a text"

    def wrong(self, value: object) -> str | None:
        """None: it is taken."""
        return None if self._takes(value) else f"{self.rule}; got {value!r}"

    def _takes(self, value: object) -> bool:
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
    """Further parameters go on to what it runs."""


def files_of(environment: str) -> tuple[str, ...]:
    """Its parameters that name data sets."""
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
    "data": _file("The questions: the built-in demo/sums, or a data set of your team's, NAME or NAME@VERSION."),
    "prompt_column": _text("prompt", "Where a row has the question."),
    "answer_column": _text("answer", "Where it has the answer that is due."),
    "tools_column": _text("tools", "Where it has the tools that the chat template is to tell of."),
    "held_out_share": _number(0.125, 0.001, 0.9, "How many questions are kept for evaluations only."),
    "held_out_column": _text("", "Instead: the column that says which rows those are."),
    "held_out_value": _text("test", "Its value there."),
    "held_out_data": _file("Instead: a data set of its own for them."),
}
_DUE: Final = _file(_QUESTIONS["data"].about, is_required=True)
_VERIFIER: Final[Mapping[str, Param]] = {
    "verifier": _choice("exact", VERIFIERS, "The rule by which an answer is right."),
    "answer_after": _text("", "Judge only what follows the last such marker, such as ####."),
    "end_text": _text("", "Removed from the end first, such as <|im_end|>."),
    "tolerance": _number(1e-9, 0, 1, "Of numeric: how far off a number may be; relative above 1."),
    "test_timeout_s": _number(10.0, 0.1, 600, "Of unit_tests: seconds for all tests of one answer."),
}
_WAIT_S: Final = 3_600

ENVIRONMENTS: Final[Mapping[str, EnvironmentEntry]] = {
    "running_sums": EnvironmentEntry(
        title="Running sums",
        about="Adding up, saying every sum on the way. What the built-in model was made for.",
        turns="one",
        params={
            "median_terms": _number(6.0, 2, 64, "How many numbers half of the questions have at most."),
            "sigma": _number(0.95, 0, 3, "How far that spreads: 0 is always the same."),
            "max_terms": _whole(64, 2, 64, "No question has more."),
        },
    ),
    "tool_sums": EnvironmentEntry(
        title="Sums with a tool",
        about="The same over several turns: after each answer a tool waits, and names the next number.",
        turns="several",
        params={
            "turns": _whole(4, 1, 63, "How many each trajectory has."),
            "waits": _choice("tailed", ("tailed", "constant", "none"), "Whether the tool takes its time, and how."),
            "wait_mean_s": _number(0.1, 0, _WAIT_S, "How long it takes on average."),
            "wait_sigma": _number(1.2, 0, 3, "Of tailed: how much longer the longest waits are."),
        },
    ),
    "reasoning_gym": EnvironmentEntry(
        title="Reasoning gym",
        about="Any of the puzzles of the reasoning-gym library by name, judged by its own scorer.",
        turns="one",
        params={"task": _text("chain_sum", "The puzzle. All other parameters are the puzzle's own.")},
        is_open=True,
    ),
    "jsonl": EnvironmentEntry(
        title="Questions from a file",
        about="Your questions with their answers, checked by a rule that you name.",
        turns="one",
        params={**_QUESTIONS, "data": _DUE, **_VERIFIER},
    ),
    "graded": EnvironmentEntry(
        title="Questions from a file, your own judge",
        about="Your questions, and a Python function of yours that says what an answer is worth.",
        turns="as you like",
        params={**_QUESTIONS, "data": _DUE},
    ),
    "tools": EnvironmentEntry(
        title="Questions with tools",
        about="Questions to be answered with a calculator, a search or Python. For a model that can write such calls.",
        turns="several",
        params={
            **{name: row for name, row in _QUESTIONS.items() if name != "tools_column"},
            "tools": Param(
                kind="words",
                default="",
                choices=TOOLS,
                about="Those that it may use. Empty: the calculator, and the search where there is a corpus.",
            ),
            "calls": _choice("marks", CALLS, "How the model writes a call: as the question explains, or as taught."),
            "corpus": _file("What the search finds: a data set of titles and texts."),
            "max_turns": _whole(6, 1, 100, "No answer by then is worth nothing."),
            "tool_timeout_s": _number(10.0, 0.1, 600, "Seconds that a program may take."),
            "wait_median_s": _number(0.0, 0, _WAIT_S, "An extra wait before each result."),
            "wait_sigma": _number(1.2, 0, 3, "How much longer the longest of them are."),
            **_VERIFIER,
            "verifier": _choice(
                "", ("", *VERIFIERS), "The rule by which an answer is right. Empty: numeric, with data exact."
            ),
        },
    ),
    "custom": EnvironmentEntry(
        title="An environment of your own",
        about="Your Python file asks, answers over as many turns as it likes, and judges.",
        turns="as you like",
        params={},
        is_open=True,
    ),
}


def wrong_params(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """(parameter, what is wrong with it) for each; how they go together only where each is right."""
    wrong = list(_each_wrong(environment, params))
    yield from wrong or _of_several(environment, params)


def _each_wrong(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
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
            yield name, f"{name}: a data set, which is required"


def _of_several(environment: str, params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    if environment == "running_sums":
        median, most = float(params.get("median_terms", 6.0)), float(params.get("max_terms", 64))
        if median > most:
            yield "median_terms", f"median_terms: at most max_terms, which is {most:g}; got {median:g}"
    if environment == "tools" and "search" in words_of(str(params.get("tools", ""))) and not params.get("corpus"):
        yield "tools", "tools: search needs corpus, a data set of documents"
    if "held_out_column" in ENVIRONMENTS[environment].params:
        yield from _of_what_is_held_out(params)


def _of_what_is_held_out(params: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    ways = [
        name
        for name in ("held_out_share", "held_out_column", "held_out_data")
        if params.get(name, _QUESTIONS[name].default) != _QUESTIONS[name].default
    ]
    if len(ways) > 1:
        yield ways[1], f"{ways[1]}: rows are held out in one way, got {ways[0]} too"
    if params.get("held_out_value", "test") != "test" and not params.get("held_out_column"):
        got = params["held_out_value"]
        yield "held_out_value", f"held_out_value: only with held_out_column, whose value it is, got {got!r}"
