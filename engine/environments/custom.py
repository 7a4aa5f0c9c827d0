"""A customer's own environment: a Python file, run in sandboxed processes that stay warm.

    def prompt(split, ordinal, seed, params) -> {"text": …, "facts": {…}}
    def respond(prompt, turns) -> {"observation": …, "role": …} or {"reward": …, "parts": {…}, "remark": …}

Invariants:
- the file never runs in an engine process, and is not even parsed in one;
- what it raises, and an answer of another shape, is a `GraderError` that shows the author where; so is a timeout;
- prompts and verdicts come from different processes, so a slow verdict delays no prompt.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from engine.environments.graders import SandboxedGrader
from engine.environments.params import Params
from engine.environments.port import GraderError, Observation, Prompt, Split, Turn, Verdict
from engine.environments.splits import check_asked

NUM_GRADERS: Final = 2
NUM_COMPARED: Final = 8
PROMPT_TIMEOUT_S: Final = 30.0
_VERDICT_KEYS: Final = frozenset({"reward", "parts", "remark", "trusted"})


class Custom:
    name: ClassVar[str] = "custom"

    def __init__(self, *, seed: int, code: str, params: Params, timeout_s: float) -> None:
        if not code.strip():
            raise ValueError("custom: environment.code: a Python file that defines prompt and respond, got nothing")
        self._seed = seed
        self._params = dict(params)
        self._prompts = SandboxedGrader(main=code, timeout_s=PROMPT_TIMEOUT_S)
        self._verdicts = SandboxedGrader(main=code, timeout_s=timeout_s, size=NUM_GRADERS)
        self._check()

    def prompt(self, split: Split, ordinal: int) -> Prompt:
        check_asked(split, ordinal)
        made = self._prompts.call("prompt", split, ordinal, self._seed, self._params)
        if isinstance(made, dict) and set(made) <= {"text", "facts"}:
            text = made.get("text")
            if isinstance(text, str) and text:
                return Prompt(split=split, ordinal=ordinal, text=text, facts=_facts(made.get("facts", {})))
        raise GraderError(f'custom: prompt: {{"text": …, "facts": {{…}}}}, got {made!r:.200}', retryable=False)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        shown = {
            "split": prompt.split,
            "ordinal": prompt.ordinal,
            "text": prompt.text,
            "facts": dict(prompt.facts),
        }
        said = self._verdicts.call("respond", shown, [turn.text for turn in turns])
        if isinstance(said, dict) and "observation" in said and set(said) <= {"observation", "role"}:
            text, role = said["observation"], said.get("role", "user")
            if isinstance(text, str) and role in ("user", "tool"):
                return Observation(text=text, role=role)
        if isinstance(said, dict) and "reward" in said and set(said) <= _VERDICT_KEYS:
            return _verdict(said)
        raise GraderError(
            'custom: respond: {"observation": …, "role": "user" or "tool"} or {"reward": …, "parts": …, "remark": …}, '
            f"got {said!r:.200}",
            retryable=False,
        )

    def _check(self) -> None:
        """A file that cannot begin is refused before the job does."""
        try:
            train, held_out = (
                {self.prompt(split, ordinal).text for ordinal in range(NUM_COMPARED)} for split in _SPLITS
            )
        except GraderError as error:
            raise ValueError(f"environment.code: {error}") from error
        if both := train & held_out:
            raise ValueError(f"environment.code: a prompt is in both splits: {min(both)!r:.200}")


_SPLITS: Final[tuple[Split, Split]] = ("train", "held_out")


def _facts(given: object) -> dict[str, str | int]:
    if isinstance(given, dict) and all(isinstance(value, str | int) for value in given.values()):
        return given
    raise GraderError(f"custom: facts: texts and whole numbers by name, got {given!r:.200}", retryable=False)


def _verdict(said: Mapping[str, object]) -> Verdict:
    reward, parts = said["reward"], said.get("parts", {})
    if not _is_number(reward):
        raise GraderError(f"custom: reward: a finite number, got {reward!r:.100}", retryable=False)
    if not isinstance(parts, dict) or not all(_is_number(part) and 0 <= part <= 1 for part in parts.values()):
        raise GraderError(f"custom: parts: numbers from 0 to 1 by name, got {parts!r:.200}", retryable=False)
    return Verdict(
        reward=float(reward),  # type: ignore[arg-type]
        parts={name: float(part) for name, part in parts.items()},
        trusted=said.get("trusted", True) is True,
        remark=str(said.get("remark", ""))[:500],
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
