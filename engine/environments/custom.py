"""A customer's own environment: a Python file, run in sandboxed processes that stay warm.

    def prompt(split, ordinal, seed, params) -> {"text": …, "facts": {…}}, or "messages" and "tools" instead of "text"
    def respond(prompt, turns), def conclude(prompt, turns) -> as in own_judge.py

Invariants:
- no engine process runs the file or even parses it;
- an exception of the file, a prompt of another shape and a timeout become a `GraderError` that shows the author where;
- prompts and verdicts come from different processes, so a slow verdict delays no prompt.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

from engine.environments.border import shown, sound_prompt
from engine.environments.judging.graders import SandboxedGrader
from engine.environments.judging.own_judge import OwnJudge
from engine.environments.params import Params
from engine.environments.port import GraderError, Observation, Prompt, Split, Turn, Verdict
from engine.environments.questions.question import Columns, question_of
from engine.environments.splits import check_place

NUM_COMPARED: Final = 8
PROMPT_TIMEOUT_S: Final = 30.0
_PROMPT_KEYS: Final = frozenset({"text", "messages", "tools", "facts"})


class Custom:
    name: ClassVar[str] = "custom"

    def __init__(self, *, seed: int, code: str, params: Params, timeout_s: float) -> None:
        self._judge = OwnJudge(self.name, code=code, timeout_s=timeout_s)
        self._seed = seed
        self._params = dict(params)
        self._prompts = SandboxedGrader(main=code, timeout_s=PROMPT_TIMEOUT_S)
        self._check()

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_place(split, ordinal)
        raw = self._call_prompt(split, ordinal)
        if not isinstance(raw, dict) or not _PROMPT_KEYS.issuperset(raw) or ("text" in raw) == ("messages" in raw):
            rule = '{"text": …} or {"messages": […], "tools": […]}, with "facts": {…}'
            raise _prompt_error(f"prompt: {rule}, got {shown(raw)}")
        field = "text" if "text" in raw else "messages"
        try:
            question = question_of(
                {field: raw[field], "tools": raw.get("tools")}, Columns(prompt=field, all_to_judge=True)
            )
        except (ValueError, RecursionError) as error:
            raise _prompt_error(f"prompt: {error}") from error
        return sound_prompt(replace(question.as_prompt(split, ordinal), facts=_check_facts(raw.get("facts", {}))))

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        return self._judge.respond(prompt, turns)

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        return self._judge.conclude(prompt, turns)

    def _call_prompt(self, split: Split, ordinal: int) -> object:
        try:
            return self._prompts.call("prompt", split, ordinal, self._seed, self._params)
        except GraderError as error:
            if not error.is_of_platform:
                error.blame = "user_code"
            raise

    def _check(self) -> None:
        """Refuses a file without working prompts before the job begins."""
        try:
            train, held_out = (
                {self.prompt(split, ordinal).text for ordinal in range(NUM_COMPARED)} for split in _SPLITS
            )
        except GraderError as error:
            if error.is_of_platform:
                raise
            raise ValueError(f"environment.code: {error}") from error
        if both := train & held_out:
            raise ValueError(f"environment.code: no prompt may be in both splits, got {min(both)!r:.200} in both")


_SPLITS: Final[tuple[Split, Split]] = ("train", "held_out")


def _check_facts(given: object) -> dict[str, str | int]:
    if isinstance(given, dict) and all(isinstance(value, str | int) for value in given.values()):
        return given
    raise _prompt_error(f"facts: texts and whole numbers by name, got {shown(given)}")


def _prompt_error(message: str) -> GraderError:
    return GraderError(f"custom: {message}", retryable=False, blame="user_code")
