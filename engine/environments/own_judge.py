"""A customer's own `respond`, in sandboxed processes that stay warm.

    def respond(prompt, turns) -> {"observation": …, "role": …} or {"reward": …, "parts": {…}, "remark": …}

Invariant: what it raises, and an answer of another shape, is a `GraderError` that shows the author where; so is a
timeout.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from engine.environments.graders import SandboxedGrader
from engine.environments.port import GraderError, Observation, Prompt, Turn, Verdict

NUM_GRADERS: Final = 2
_VERDICT_KEYS: Final = frozenset({"reward", "parts", "remark", "trusted"})


class OwnJudge:
    def __init__(self, environment: str, *, code: str, timeout_s: float) -> None:
        """Raises `ValueError`."""
        if not code.strip():
            raise ValueError(f"{environment}: environment.code: a Python file that defines respond, got nothing")
        self._environment = environment
        self._processes = SandboxedGrader(main=code, timeout_s=timeout_s, size=NUM_GRADERS)

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        shown = {
            "split": prompt.split,
            "ordinal": prompt.ordinal,
            "text": prompt.text,
            "facts": dict(prompt.facts),
        }
        said = self._processes.call("respond", shown, [turn.text for turn in turns])
        if isinstance(said, dict) and "observation" in said and set(said) <= {"observation", "role"}:
            text, role = said["observation"], said.get("role", "user")
            if isinstance(text, str) and role in ("user", "tool"):
                return Observation(text=text, role=role)
        if isinstance(said, dict) and "reward" in said and set(said) <= _VERDICT_KEYS:
            return self._verdict(said)
        raise self._wrong(
            'respond: {"observation": …, "role": "user" or "tool"} or {"reward": …, "parts": …, "remark": …}', said
        )

    def _verdict(self, said: Mapping[str, object]) -> Verdict:
        reward, parts = said["reward"], said.get("parts", {})
        if not _is_number(reward):
            raise self._wrong("reward: a finite number", reward)
        if not isinstance(parts, dict) or not all(_is_number(part) and 0 <= part <= 1 for part in parts.values()):
            raise self._wrong("parts: numbers from 0 to 1 by name", parts)
        return Verdict(
            reward=float(reward),  # type: ignore[arg-type]
            parts={name: float(part) for name, part in parts.items()},
            trusted=said.get("trusted", True) is True,
            remark=str(said.get("remark", ""))[:500],
        )

    def _wrong(self, wanted: str, got: object) -> GraderError:
        return GraderError(f"{self._environment}: {wanted}, got {got!r:.200}", retryable=False)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
