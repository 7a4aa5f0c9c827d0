"""What an environment may hand to the engine: text that can be encoded, rewards that can be added up, sizes that fit.

Everything that a customer's code or data makes passes here once, on its way to samples, log and trainer.

    a half of a surrogate pair          becomes U+FFFD; nobody can encode it, so no model could have read it
    everything else beyond its bounds   is refused: `GraderError`, the environment's, with field, rule and value

Invariants:
- what passes is made of the built-in types and can be encoded as UTF-8 and as JSON;
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
MAX_LETTERS: Final = 4 << 20  # of a prompt, as of a row of a data set; millions of tokens
MAX_REMARK: Final = 500
MAX_TOOL: Final = 200
MAX_ARGUMENTS: Final = 20_000  # they are for people: a model's own text has all of them
MAX_ENTRIES: Final = 10_000  # of all that is nested in messages, tools or facts
MAX_DEPTH: Final = 32
MAX_WHOLE: Final = 1 << 64  # what JSON readers and templates are certain to take
MAX_PARTS: Final = 100
SHOWN_LETTERS: Final = 200
_HALF: Final = re.compile("[\ud800-\udfff]")


def sound_text(text: str) -> str:
    return _HALF.sub("\ufffd", text) if not text.isascii() else text


def shown(value: object) -> str:
    """For a person: short, and nothing in it that a terminal, a page or a log would obey."""
    try:
        text = ascii(value[: 2 * SHOWN_LETTERS] if isinstance(value, str) else value)
    except (RecursionError, ValueError):  # nested too deeply, or a number too long to be written
        return f"a value of the type {type(value).__name__}"
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def is_number(value: object) -> bool:
    """Finite, and no larger than can be worked with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_REWARD


def sound(said: Prompt | Observation | Verdict) -> Prompt | Observation | Verdict:
    """Raises `GraderError`."""
    match said:
        case Prompt():
            return sound_prompt(said)
        case Observation():
            return _observation(said)
        case Verdict():
            return _verdict(said)


def sound_prompt(prompt: Prompt) -> Prompt:
    """Raises `GraderError`."""
    walk = _Walk("prompt")
    return replace(
        prompt,
        text=_bounded("prompt", prompt.text, "user_code"),
        facts={sound_text(name): _fact(name, value) for name, value in prompt.facts.items()},
        messages=tuple(walk.plain(message) for message in prompt.messages),
        tools=tuple(walk.plain(tool) for tool in prompt.tools),
    )


def _observation(observation: Observation) -> Observation:
    return replace(
        observation,
        text=_bounded("observation", observation.text, "user_code"),
        tool=sound_text(observation.tool[:MAX_TOOL]),
        arguments=sound_text(observation.arguments[:MAX_ARGUMENTS]),
        error=sound_text(observation.error[:MAX_REMARK]),
    )


def _verdict(verdict: Verdict) -> Verdict:
    if not is_number(verdict.reward):
        raise _refused("reward", f"a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}", verdict.reward, "reward")
    parts = verdict.parts
    if len(parts) > MAX_PARTS or not all(is_number(part) for part in parts.values()):
        raise _refused("parts", f"at most {MAX_PARTS} finite numbers by name", parts, "reward")
    return replace(
        verdict,
        reward=float(verdict.reward),
        parts={sound_text(name)[:MAX_REMARK]: float(part) for name, part in parts.items()},
        remark=sound_text(verdict.remark[:MAX_REMARK]),
    )


def _fact(name: str, value: object) -> str | int:
    if isinstance(value, str):
        return _bounded(f"facts: {shown(name)}", value, "user_code")
    if isinstance(value, int) and abs(value) <= MAX_WHOLE:
        return value
    raise _refused(f"facts: {shown(name)}", "a text or a whole number of at most 64 bits", value, "user_code")


def _bounded(field: str, text: str, blame: Blame) -> str:
    if len(text) > MAX_LETTERS:
        raise _refused(field, f"a text of at most {MAX_LETTERS} letters", f"{len(text)} letters", blame)
    return sound_text(text)


class _Walk:
    """Through what is nested, entry by entry, however deep it claims to be."""

    def __init__(self, field: str) -> None:
        self._field, self._num_left = field, MAX_ENTRIES

    def plain(self, value: Any, depth: int = 0) -> Any:
        self._num_left -= 1
        if depth > MAX_DEPTH or self._num_left < 0:
            rule = f"messages and tools of at most {MAX_ENTRIES} entries, nested at most {MAX_DEPTH} deep"
            raise _refused(self._field, rule, value, "user_code")
        match value:
            case str():
                return _bounded(self._field, value, "user_code")
            case Mapping():
                return {self._name(name): self.plain(item, depth + 1) for name, item in value.items()}
            case list() | tuple():
                return [self.plain(item, depth + 1) for item in value]
            case None | bool():
                return value
            case int() | float() if math.isfinite(value if isinstance(value, float) else 0) and abs(value) <= MAX_WHOLE:
                return value
        raise _refused(self._field, "texts, finite numbers, lists and objects by name", value, "user_code")

    def _name(self, name: object) -> str:
        if not isinstance(name, str):
            raise _refused(self._field, "objects whose keys are texts", name, "user_code")
        return _bounded(self._field, name, "user_code")


def _refused(field: str, rule: str, got: object, blame: Blame) -> GraderError:
    return GraderError(f"{field}: {rule}, got {shown(got)}", retryable=False, blame=blame)
