"""Questions to be answered with tools, over several turns.

    model   I need the product. <tool>calculator 37 * 48</tool>
    tool    <result>1776</result>
    model   <answer>1776</answer>

A turn without a call ends the trajectory: its `<answer>` is judged, or the whole turn if there is none. Text after a
call is ignored; `rollout.stop: ["</tool>"]` keeps the model from writing any. Models with a chat template may also use
the format of calls that they were trained on (calls.py).

Invariants:
- a wrong call is answered with an error text, and the trajectory continues;
- a tool that cannot run because of the platform raises `GraderError`;
- after `max_turns` turns, or when truncated, the trajectory counts as wrong.
"""

import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

from engine.environments.judging.graders import blame_for
from engine.environments.judging.verifiers import Verify, make_verifier
from engine.environments.params import ParamReader, Params
from engine.environments.port import GraderError, Message, Observation, Prompt, Split, Turn, Verdict
from engine.environments.questions.params import HELD_OUT_SHARE, DataParams
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.sandbox.command import require_bubblewrap
from engine.environments.sandbox.excuses import room_in
from engine.environments.sandbox.outcome import Finished, Limits, Refused, Starved
from engine.environments.sandbox.run import run_python
from engine.environments.splits import check_place, split_of_text
from engine.environments.tools.calculator import NotArithmetic, calculate
from engine.environments.tools.calls import Call, Calls, calls_by
from engine.environments.tools.search import Corpus
from engine.environments.tools.waits import Waits
from engine.spec.environments.params import TOOLS, words_of

Tool = Callable[[str], str]

MAX_RESULT: Final = 4_000  # characters; a model's context is small
_ANSWER: Final = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)


class CallFailed(Exception):
    """The model's fault: an unreadable call, an unknown tool, or an argument that fails."""

    def __init__(self, message: str, *, shown: str = "") -> None:
        """`shown`: the tool's output before the failure."""
        super().__init__(message)
        self.shown = shown


class QuestionSource(Protocol):
    def prompt(self, split: Split, ordinal: int) -> Prompt:
        """A question, with the expected answer among its facts."""
        ...


class Tools:
    name: ClassVar[str] = "tools"

    def __init__(
        self,
        *,
        questions: QuestionSource,
        verify: Verify,
        tools: Mapping[str, Tool],
        calls: Calls,
        waits: Waits,
        max_turns: int,
    ) -> None:
        self._questions = questions
        self._verify = verify
        self._tools = tools
        self._calls = calls
        self._max_turns = max_turns
        self.waits = waits

    @classmethod
    def from_params(cls, seed: int, params: Params, timeout_s: float) -> Self:
        reader = ParamReader(cls.name, params)
        data, corpus = DataParams.of(reader, brings_tools=False), reader.file("corpus")
        default = "calculator,search" if corpus else "calculator"
        names = words_of(reader.text("tools") or default)
        waits = Waits(
            seed=seed,
            median_s=reader.number("wait_median_s"),
            sigma=reader.number("wait_sigma"),
        )
        calls = calls_by(reader.text("calls"))
        max_turns = reader.whole("max_turns")
        tool_timeout_s = min(reader.number("tool_timeout_s"), timeout_s)
        verify = make_verifier(reader, timeout_s=timeout_s, default="exact" if data.data else "numeric")
        reader.finish()
        questions: QuestionSource = data.open_questions(seed=seed) if data.data else Arithmetic(seed=seed)
        tools = {name: _make_tool(name, corpus, tool_timeout_s) for name in names}
        return cls(questions=questions, verify=verify, tools=tools, calls=calls, waits=waits, max_turns=max_turns)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_place(split, ordinal)
        return with_rules(self._questions.prompt(split, ordinal), self._calls, self._tools)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        if not 1 <= len(turns) <= self._max_turns:
            raise ValueError(f"turns: from 1 to {self._max_turns}, got {len(turns)}")
        text = self._calls.without_thoughts(turns[-1].text)
        call = self._calls.find_call(text)
        answer = _ANSWER.search(text)
        if call is None or (answer is not None and answer.start() < call.start):
            return self._verify(str(prompt.facts["answer"]), answer[1] if answer else text)
        if len(turns) == self._max_turns:
            return self.conclude(prompt, turns)
        self.waits.wait(prompt, len(turns) - 1)
        result, error = self._run(call)
        return Observation(
            text=self._calls.as_result(result[:MAX_RESULT]),
            role="tool",
            tool=call.name,
            arguments=call.argument,
            error=error,
        )

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        return Verdict(reward=0.0, parts={"right": 0.0}, trusted=True, remark=f"no answer in {len(turns)} turns")

    def _run(self, call: Call) -> tuple[str, str]:
        """The result for the model, and the error of the call; empty: none."""
        try:
            if call.wrong:
                raise CallFailed(call.wrong)
            if call.name not in self._tools:
                raise CallFailed(f"there is no tool {call.name!r}; there is {', '.join(self._tools)}")
            return self._tools[call.name](call.argument), ""
        except CallFailed as failed:
            return f"{failed.shown}\nerror: {failed}".strip(), str(failed)


class Arithmetic:
    """The default questions, without `data`: sums that are hard for a model and easy for the calculator."""

    def __init__(self, *, seed: int) -> None:
        self._seed = seed

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        rng = random.Random(f"tools/{self._seed}/{split}/{ordinal}")
        while True:
            a, b, c = rng.randint(12, 99), rng.randint(12, 99), rng.randint(100, 999)
            question = f"What is {a} * {b} + {c}?"
            if split_of_text(question, HELD_OUT_SHARE) == split:
                return Prompt(split=split, ordinal=ordinal, text=question, facts={"answer": str(a * b + c)})


def with_rules(question: Prompt, calls: Calls, tools: Iterable[str]) -> Prompt:
    rules = f"{calls.rules(tools)}\nEnd with <answer>your answer</answer>."
    messages = _prepend_rules(rules, question.messages) if question.messages else ()
    return replace(question, text=f"{rules}\n\n{question.text}\n", messages=messages, tools=calls.tool_schemas(tools))


def _prepend_rules(rules: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Extends the first system message, or adds one: templates accept one, at the beginning."""
    first, *rest = messages
    if first["role"] == "system":
        return ({**first, "content": f"{rules}\n\n{first.get('content', '')}"}, *rest)
    return ({"role": "system", "content": rules}, *messages)


def _make_tool(name: str, corpus: Path | None, timeout_s: float) -> Tool:
    match name:
        case "calculator":
            return _calculate
        case "search":
            if not corpus:
                raise ValueError("tools: search needs corpus, the name of a JSONL file of documents")
            documents = Corpus(corpus)
            return lambda query: _search(documents, query)
        case "python":
            return SandboxedPython(timeout_s=timeout_s).run
    raise ValueError(f"tools: unknown tool {name!r}; choose from {', '.join(TOOLS)}")


def _calculate(text: str) -> str:
    try:
        return calculate(text)
    except NotArithmetic as error:
        raise CallFailed(str(error)) from error


def _search(corpus: Corpus, query: str) -> str:
    documents = corpus.search(query, num=3)
    return "\n".join(f"{document.title}: {document.text[:1_000]}" for document in documents) or "nothing found"


class SandboxedPython:
    def __init__(self, *, timeout_s: float) -> None:
        require_bubblewrap()
        self._limits = Limits(wall_s=timeout_s, cpu_s=max(round(timeout_s), 1), output_bytes=MAX_RESULT)
        self._room = threading.BoundedSemaphore(host_capacity().programs)

    def run(self, program: str) -> str:
        with room_in(self._room):
            outcome = run_python(program, limits=self._limits)
        if isinstance(outcome, Refused | Starved):
            raise GraderError(f"tools: {outcome}", blame=blame_for(outcome))
        shown = (outcome.output.stdout + outcome.output.stderr)[: MAX_RESULT - 200]  # room for the error text
        if isinstance(outcome, Finished) and outcome.exit_code == 0:
            return shown.strip() or "(it printed nothing)"
        raise CallFailed(f"the program {outcome}", shown=shown.strip())
