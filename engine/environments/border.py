"""Validation of what an environment hands to the engine: encodable text, finite rewards, bounded sizes.

Everything that a customer's code or data produces passes here once, on its way to samples, log and trainer.

    half a surrogate pair         becomes U+FFFD: it cannot be encoded, so no model could have read it
    any other value out of bounds is refused: `GraderError`, blamed on the environment, with field, rule and value

Invariants:
- validated values are made of built-in types and can be encoded as UTF-8 and as JSON;
- a reward is finite and at most MAX_REWARD from 0: squares of differences, summed over any batch, stay far below the
  largest float32;
- the value shown in a refusal is short, and escaped.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.environments.port import Blame, GraderError, Observation, Prompt, Verdict

MAX_REWARD: Final = 1e9
MAX_LETTERS: Final = 4 << 20  # characters of a prompt, the bound of a data set's row too; millions of tokens
MAX_PROMPT_BYTES: Final = 9 << 20
"""UTF-8, of all texts of a prompt: the longest row of a data set in both forms, messages and readable text."""
MAX_REMARK: Final = 500
MAX_TOOL: Final = 200
MAX_ARGUMENTS: Final = 20_000  # for display only: the model's own text holds all of them
MAX_ENTRIES: Final = 10_000  # of a prompt: nested in all its messages and tools; and its facts
MAX_DEPTH: Final = 32
MAX_WHOLE: Final = 1 << 64  # every JSON reader and template accepts integers of this size
MAX_PARTS: Final = 100
SHOWN_LETTERS: Final = 200
_HALF: Final = re.compile("[\ud800-\udfff]")


def sound_text(text: str) -> str:
    return _HALF.sub("\ufffd", text) if not text.isascii() else text


def shown(value: object) -> str:
    """For error texts: short, and escaped, so that no terminal, page or log interprets any of it."""
    try:
        text = ascii(value[: 2 * SHOWN_LETTERS] if isinstance(value, str) else value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer with too many digits to print
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def is_number(value: object) -> bool:
    """A finite number of at most MAX_REWARD in absolute value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_REWARD


def sound(response: Prompt | Observation | Verdict) -> Prompt | Observation | Verdict:
    """Raises `GraderError`."""
    match response:
        case Prompt():
            return sound_prompt(response)
        case Observation():
            return _sound_observation(response)
        case Verdict():
            return _sound_verdict(response)


def sound_prompt(prompt: Prompt) -> Prompt:
    """Raises `GraderError`."""
    nested = _NestedValues("prompt")
    if len(prompt.facts) > MAX_ENTRIES:
        raise _refusal("prompt", f"at most {MAX_ENTRIES} facts", len(prompt.facts), "user_code")
    whole = replace(
        prompt,
        text=_check_length("prompt", prompt.text, "user_code"),
        facts={sound_text(name): _sound_fact(name, value) for name, value in prompt.facts.items()},
        messages=tuple(nested.plain(message) for message in prompt.messages),
        tools=tuple(nested.plain(tool) for tool in prompt.tools),
    )
    num_bytes = _num_bytes([whole.text, whole.facts, *whole.messages, *whole.tools])
    if num_bytes > MAX_PROMPT_BYTES:
        rule = f"at most {MAX_PROMPT_BYTES} bytes in all texts of a prompt"
        raise _refusal("prompt", rule, num_bytes, "user_code")
    return whole


def _num_bytes(value: object) -> int:
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode())
        case Mapping():
            return sum(_num_bytes(name) + _num_bytes(each) for name, each in value.items())
        case list() | tuple():
            return sum(map(_num_bytes, value))
    return 0


def _sound_observation(observation: Observation) -> Observation:
    return replace(
        observation,
        text=_check_length("observation", observation.text, "user_code"),
        tool=sound_text(observation.tool[:MAX_TOOL]),
        arguments=sound_text(observation.arguments[:MAX_ARGUMENTS]),
        error=sound_text(observation.error[:MAX_REMARK]),
    )


def _sound_verdict(verdict: Verdict) -> Verdict:
    if not is_number(verdict.reward):
        raise _refusal("reward", f"a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}", verdict.reward, "reward")
    parts = verdict.parts
    if len(parts) > MAX_PARTS or not all(is_number(part) for part in parts.values()):
        raise _refusal("parts", f"at most {MAX_PARTS} finite numbers by name", parts, "reward")
    return replace(
        verdict,
        reward=float(verdict.reward),
        parts={sound_text(name)[:MAX_REMARK]: float(part) for name, part in parts.items()},
        remark=sound_text(verdict.remark[:MAX_REMARK]),
    )


def _sound_fact(name: str, value: object) -> str | int:
    if isinstance(value, str):
        return _check_length(f"facts: {shown(name)}", value, "user_code")
    if isinstance(value, int) and abs(value) <= MAX_WHOLE:
        return value
    raise _refusal(f"facts: {shown(name)}", "a text or a whole number of at most 64 bits", value, "user_code")


def _check_length(field: str, text: str, blame: Blame) -> str:
    if len(text) > MAX_LETTERS:
        raise _refusal(field, f"a text of at most {MAX_LETTERS} characters", f"{len(text)} characters", blame)
    return sound_text(text)


class _NestedValues:
    """Copies nested values entry by entry, within MAX_ENTRIES and MAX_DEPTH."""

    def __init__(self, field: str) -> None:
        self._field, self._num_left = field, MAX_ENTRIES

    def plain(self, value: Any, depth: int = 0) -> Any:
        self._num_left -= 1
        if depth > MAX_DEPTH or self._num_left < 0:
            rule = f"messages and tools of at most {MAX_ENTRIES} entries, nested at most {MAX_DEPTH} deep"
            raise _refusal(self._field, rule, value, "user_code")
        match value:
            case str():
                return _check_length(self._field, value, "user_code")
            case Mapping():
                return {self._name(name): self.plain(item, depth + 1) for name, item in value.items()}
            case list() | tuple():
                return [self.plain(item, depth + 1) for item in value]
            case None | bool():
                return value
            case int() | float() if math.isfinite(value if isinstance(value, float) else 0) and abs(value) <= MAX_WHOLE:
                return value
        raise _refusal(self._field, "texts, finite numbers, lists and objects by name", value, "user_code")

    def _name(self, name: object) -> str:
        if not isinstance(name, str):
            raise _refusal(self._field, "objects whose keys are texts", name, "user_code")
        return _check_length(self._field, name, "user_code")


def _refusal(field: str, rule: str, got: object, blame: Blame) -> GraderError:
    return GraderError(f"{field}: {rule}, got {shown(got)}", retryable=False, blame=blame)
