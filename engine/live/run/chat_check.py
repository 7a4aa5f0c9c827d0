"""The check of what a job says to its model: the folder's chat template takes conversations of its kind, and its
questions, if they are in files, are good ones that fit the model.

Templates and data are other people's. Both are tried within bounds of time and memory, in a process of its own
(model_check).

Invariants:
- every row of a data set is read, and every bad one is named at once, by file and number;
- a template is shown a question of each shape (roles, fields, tools): what it refuses of one, it refuses of all;
- tokens are counted of those questions alone whose bytes are more than the model could read.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Final

from engine.environments.port import Prompt
from engine.environments.registry import has_questions, observed_as, read_questions, told_tools
from engine.environments.sandbox.host_speed import host_scale
from engine.inference.port import SequenceRequest
from engine.inference.requests import Limits, check_request
from engine.live.rollout.conversation import sampling_of
from engine.live.rollout.wording import Wording
from engine.live.run.history_cost import STAND_IN, warnings_of_history
from engine.live.run.model_check import DEAF, TEMPLATE_CPU_S
from engine.pipeline.records import GroupKey, SampleKey
from engine.spec.job import JobSpec
from engine.spec.slots import kv_tokens_of_a_slot

# More than this process has anyway. A batch of rows is at most 1 GiB (tables.py), if each is as long as it may be.
MORE_MEMORY: Final = 2 << 30


def check_chat(
    spec: JobSpec, folder: Path, *, max_positions: int, vocab_size: int, data_folder: Path | None
) -> tuple[str, ...]:
    """Warnings. Raises `ValueError`."""
    wording, tools = Wording.of_model(folder, spec.model), told_tools(spec.environment)
    question = STAND_IN
    with bounded():
        with soon_over():
            wording.try_out(observed_as(spec.environment))
            if tools and not wording.shows_tools(tools):
                raise ValueError(DEAF)
        if has_questions(spec.environment):
            kv_tokens = kv_tokens_of_a_slot(spec) or max_positions
            limits = Limits(vocab_size=vocab_size, max_positions=max_positions, kv_tokens=kv_tokens)
            askable = Askable(spec, wording, limits)
            read_questions(spec.environment, data_folder=data_folder, accept=askable)
            question = askable.first or question
        with soon_over():
            return warnings_of_history(spec, folder, replace(question, tools=question.tools or tools))


class Askable:
    def __init__(self, spec: JobSpec, wording: Wording, limits: Limits) -> None:
        self._wording, self._limits = wording, limits
        self._sampling = sampling_of(SampleKey(group=GroupKey(ordinal=0), sample=0), spec)
        self._shortest = min(limits.max_positions, limits.kv_tokens - self._sampling.max_new_tokens)
        self._known: dict[str, str] = {}
        self.first: Prompt | None = None

    def __call__(self, asked: Prompt) -> None:
        """Raises `ValueError`."""
        self.first = self.first or asked
        shape = _shape_of(asked)
        if shape not in self._known:
            self._known[shape] = self._wrong_with(asked)
        if self._known[shape]:
            raise ValueError(self._known[shape])
        if _num_bytes(asked) >= self._shortest:
            self._check_length(asked)

    def _wrong_with(self, asked: Prompt) -> str:
        try:
            with soon_over():
                self._wording.opened(asked)
        except ValueError as error:
            return str(error)
        return ""

    def _check_length(self, asked: Prompt) -> None:
        ids = self._wording.opened(asked).ids
        check_request(SequenceRequest(sequence_id="it", prompt_ids=ids, sampling=self._sampling), self._limits)


def _shape_of(asked: Prompt) -> str:
    """All but its words: what a chat template may refuse."""
    messages = [[each["role"], sorted(each)] for each in asked.messages]
    return json.dumps([messages, bool(asked.tools)])


def _num_bytes(asked: Prompt) -> int:
    """At least as many as its tokens, but for those of the template."""
    return len(asked.text.encode(errors="surrogatepass")) + (len(json.dumps(asked.tools)) if asked.tools else 0)


@contextmanager
def soon_over() -> Iterator[None]:
    """The signal ends the process: what is stuck in C would not hear of an exception. A template cannot sleep, so that
    processor time is all it takes, on a busy host too."""
    signal.setitimer(signal.ITIMER_PROF, TEMPLATE_CPU_S * host_scale())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def bounded() -> Iterator[None]:
    """Raises `ValueError` of what takes too much memory."""
    soft, hard = getrlimit(RLIMIT_DATA)
    words = Path("/proc/self/status").read_text().split()
    most = int(words[words.index("VmData:") + 1]) * 1024 + MORE_MEMORY
    setrlimit(RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"the chat template, or a row of data, takes more than {MORE_MEMORY} bytes") from error
    finally:
        setrlimit(RLIMIT_DATA, (soft, hard))
