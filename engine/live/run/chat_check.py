"""Checks a job's prompts: the chat template accepts the job's conversations, and questions in files fit the model.

Templates and data are untrusted: templates run in a process of their own (`engine/live/texts`), data are read within a
limit of memory in another (model_check_child).

Invariants:
- every row of a data set is read, and all bad rows are named together, by file and number;
- the template renders one question of each shape (roles, fields, tools): if it rejects one, it rejects all of them;
- tokens are counted only for questions with at least as many bytes as the model can read tokens.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Final

from engine.environments.port import Prompt
from engine.environments.registry import described_tools, has_questions, observed_as, read_questions
from engine.inference.port import SequenceRequest
from engine.inference.requests import Limits, check_request, check_whole_answer
from engine.live.rollout.conversation import sampling_of
from engine.live.rollout.wording import Wording
from engine.live.run.history_cost import STAND_IN, warnings_of_history
from engine.live.run.model_check import TOOLS_HIDDEN
from engine.pipeline.records import GroupKey, SampleKey
from engine.process.held_memory import sizes_in
from engine.spec.job import JobSpec
from engine.spec.slots import kv_tokens_of_a_slot

# In addition to what this process uses. A batch of rows of the longest allowed length is at most 1 GiB (tables.py).
MORE_MEMORY: Final = 2 << 30


def check_chat(
    spec: JobSpec, folder: Path, *, max_positions: int, vocab_size: int, data_folder: Path | None
) -> tuple[str, ...]:
    """Returns warnings. Raises `ValueError` if template or questions are refused."""
    wording, tools = Wording.of_model(folder, spec.model), described_tools(spec.environment)
    question = STAND_IN
    with bounded():
        wording.try_out(observed_as(spec.environment))
        if tools and not wording.shows_tools(tools):
            raise ValueError(TOOLS_HIDDEN)
        if has_questions(spec.environment):
            kv_tokens = kv_tokens_of_a_slot(spec) or max_positions
            limits = Limits(vocab_size=vocab_size, max_positions=max_positions, kv_tokens=kv_tokens)
            askable = Askable(spec, wording, limits)
            read_questions(spec.environment, data_folder=data_folder, accept=askable)
            question = askable.first or question
        return warnings_of_history(spec, folder, replace(question, tools=question.tools or tools))


class Askable:
    def __init__(self, spec: JobSpec, wording: Wording, limits: Limits) -> None:
        self._wording, self._limits = wording, limits
        self._sampling = sampling_of(SampleKey(group=GroupKey(ordinal=0), sample=0), spec)
        self._shortest = min(limits.max_positions, limits.kv_tokens - self._sampling.max_new_tokens)
        self._known: dict[str, str] = {}
        self.first: Prompt | None = None

    def __call__(self, question: Prompt) -> None:
        """Raises `ValueError` if the template rejects the question or the model cannot read it."""
        self.first = self.first or question
        shape = _shape_of(question)
        if shape not in self._known:
            self._known[shape] = self._find_problem(question)
        if self._known[shape]:
            raise ValueError(self._known[shape])
        if _num_bytes(question) >= self._shortest:
            self._check_length(question)

    def _find_problem(self, question: Prompt) -> str:
        try:
            self._wording.render_prompt(question)
        except ValueError as error:
            return str(error)
        return ""

    def _check_length(self, question: Prompt) -> None:
        ids = self._wording.render_prompt(question).ids
        request = SequenceRequest(sequence_id="it", prompt_ids=ids, sampling=self._sampling)
        check_request(request, self._limits)
        check_whole_answer(request, self._limits)


def _shape_of(question: Prompt) -> str:
    """The question without its texts: the aspects that a chat template may reject."""
    messages = [[each["role"], sorted(each)] for each in question.messages]
    return json.dumps([messages, bool(question.tools)])


def _num_bytes(question: Prompt) -> int:
    """At least the number of its tokens, without those of the template."""
    of_tools = len(json.dumps(question.tools)) if question.tools else 0
    return len(question.text.encode(errors="surrogatepass")) + of_tools


@contextmanager
def bounded() -> Iterator[None]:
    """Raises `ValueError` if the block uses too much memory."""
    soft, hard = getrlimit(RLIMIT_DATA)
    most = sizes_in(Path("/proc/self/status"))["VmData"] + MORE_MEMORY
    setrlimit(RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"a row of data needs more than {MORE_MEMORY} bytes") from error
    finally:
        setrlimit(RLIMIT_DATA, (soft, hard))
