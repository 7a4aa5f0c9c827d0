"""Questions to be answered with tools, over several turns.

    model   I need the product. <tool>calculator 37 * 48</tool>
    tool    <result>1776</result>
    model   <answer>1776</answer>

A turn without a call ends the trajectory: its `<answer>`, or all of it where there is none, is judged. What a model
writes after a call is not looked at; with `rollout.stop: ["</tool>"]` it does not write any. Calls may also be made in
the way that models with a chat template were taught (calls.py).

Invariants:
- a call that is wrong in any way is answered with what was wrong, and the trajectory goes on;
- a tool that could not run for reasons of ours raises `GraderError`;
- after `max_turns` turns, or when truncated, the trajectory counts as wrong.
"""

import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

from engine.environments.calculator import NotArithmetic, calculate
from engine.environments.calls import Call, Calls, calls_by
from engine.environments.params import ParamReader, Params
from engine.environments.port import GraderError, Message, Observation, Prompt, Split, Turn, Verdict
from engine.environments.questions.params import HELD_OUT_SHARE, DataParams
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.sandbox.command import require_bubblewrap
from engine.environments.sandbox.excuses import room_in
from engine.environments.sandbox.outcome import Finished, Limits, Refused, Starved
from engine.environments.sandbox.run import run_python
from engine.environments.search import Corpus
from engine.environments.splits import check_asked, split_of_text
from engine.environments.verifiers import Verify, make_verifier
from engine.environments.waits import Waits
from engine.spec.environment_params import TOOLS, words_of

Tool = Callable[[str], str]

MAX_RESULT: Final = 4_000  # characters; a model's context is small
_ANSWER: Final = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)


class CallFailed(Exception):
    """A tool was called wrongly, or with something that does not work: the model's own doing."""

    def __init__(self, message: str, *, shown: str = "") -> None:
        """`shown`: what the tool had shown by then."""
        super().__init__(message)
        self.shown = shown


class Asking(Protocol):
    def prompt(self, split: Split, ordinal: int) -> Prompt:
        """A question, with the answer that is due among its facts."""
        ...


class Tools:
    name: ClassVar[str] = "tools"

    def __init__(
        self,
        *,
        questions: Asking,
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
        wanted = words_of(reader.text("tools") or default)
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
        questions: Asking = data.opened(seed=seed) if data.data else Arithmetic(seed=seed)
        tools = {name: _tool(name, corpus, tool_timeout_s) for name in wanted}
        return cls(questions=questions, verify=verify, tools=tools, calls=calls, waits=waits, max_turns=max_turns)

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_asked(split, ordinal)
        return with_rules(self._questions.prompt(split, ordinal), self._calls, self._tools)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        if not 1 <= len(turns) <= self._max_turns:
            raise ValueError(f"turns: from 1 to {self._max_turns}, got {len(turns)}")
        said = self._calls.looked_at(turns[-1].text)
        call = self._calls.found(said)
        answer = _ANSWER.search(said)
        if call is None or (answer is not None and answer.start() < call.start):
            return self._verify(str(prompt.facts["answer"]), answer[1] if answer else said)
        if len(turns) == self._max_turns:
            return self.conclude(prompt, turns)
        self.waits.wait(prompt, len(turns) - 1)
        result, error = self._used(call)
        return Observation(
            text=self._calls.answered(result[:MAX_RESULT]),
            role="tool",
            tool=call.name,
            arguments=call.argument,
            error=error,
        )

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        return Verdict(reward=0.0, parts={"right": 0.0}, trusted=True, remark=f"no answer in {len(turns)} turns")

    def _used(self, call: Call) -> tuple[str, str]:
        """What the model is told, and what went wrong."""
        try:
            if call.wrong:
                raise CallFailed(call.wrong)
            if call.name not in self._tools:
                raise CallFailed(f"there is no tool {call.name!r}; there is {', '.join(self._tools)}")
            return self._tools[call.name](call.argument), ""
        except CallFailed as failed:
            return f"{failed.shown}\nerror: {failed}".strip(), str(failed)


class Arithmetic:
    """Questions for where no data is given: sums that are hard in the head and easy for the calculator."""

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
    messages = _told_first(rules, question.messages) if question.messages else ()
    return replace(question, text=f"{rules}\n\n{question.text}\n", messages=messages, tools=calls.described(tools))


def _told_first(rules: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Templates know one system message, at the beginning."""
    first, *rest = messages
    if first["role"] == "system":
        return ({**first, "content": f"{rules}\n\n{first.get('content', '')}"}, *rest)
    return ({"role": "system", "content": rules}, *messages)


def _tool(name: str, corpus: Path | None, timeout_s: float) -> Tool:
    match name:
        case "calculator":
            return _calculated
        case "search":
            if not corpus:
                raise ValueError("tools: search needs corpus, the name of a JSONL file of documents")
            found = Corpus(corpus)
            return lambda query: _listed(found, query)
        case "python":
            return SandboxedPython(timeout_s=timeout_s).run
    raise ValueError(f"tools: unknown tool {name!r}; choose from {', '.join(TOOLS)}")


def _calculated(text: str) -> str:
    try:
        return calculate(text)
    except NotArithmetic as error:
        raise CallFailed(str(error)) from error


def _listed(corpus: Corpus, query: str) -> str:
    found = corpus.search(query, num=3)
    return "\n".join(f"{document.title}: {document.text[:1_000]}" for document in found) or "nothing found"


class SandboxedPython:
    def __init__(self, *, timeout_s: float) -> None:
        require_bubblewrap()
        self._limits = Limits(wall_s=timeout_s, cpu_s=max(round(timeout_s), 1), output_bytes=MAX_RESULT)
        self._room = threading.BoundedSemaphore(host_capacity().programs)

    def run(self, program: str) -> str:
        with room_in(self._room):
            outcome = run_python(program, limits=self._limits)
        if isinstance(outcome, Refused | Starved):
            raise GraderError(f"tools: {outcome}", blame="infrastructure")
        shown = (outcome.output.stdout + outcome.output.stderr)[: MAX_RESULT - 200]  # room for how it ended
        if isinstance(outcome, Finished) and outcome.exit_code == 0:
            return shown.strip() or "(it printed nothing)"
        raise CallFailed(f"the program {outcome}", shown=shown.strip())
