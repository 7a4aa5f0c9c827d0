"""A customer's own `respond`, in sandboxed processes that stay warm.

    def respond(prompt, turns) -> {"observation": …, "role": …} or {"reward": …, "parts": {…}, "remark": …}
    def conclude(prompt, turns) -> {"reward": …, "parts": {…}, "remark": …}     optional: judges truncated trajectories

An observation may also say which "tool" the turn called, with which "arguments", and the "error" that it met: texts for
whoever reads the trajectory.

Invariant: what it raises, and an answer of another shape, is a `GraderError` that shows the author where; so is a
timeout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from engine.environments.border import MAX_REWARD, is_number, shown
from engine.environments.graders import SandboxedGrader
from engine.environments.port import UNFINISHED, GraderError, Observation, Prompt, Turn, Verdict
from engine.environments.sandbox.capacity import host_capacity

_WITHOUT_CONCLUDE: Final = """

if "conclude" not in globals():
    def conclude(prompt, turns):
        return None
"""
_OF_A_CALL: Final = ("tool", "arguments", "error")
_OBSERVATION_KEYS: Final = frozenset({"observation", "role", *_OF_A_CALL})
_VERDICT_KEYS: Final = frozenset({"reward", "parts", "remark", "trusted"})


class OwnJudge:
    def __init__(self, environment: str, *, code: str, timeout_s: float) -> None:
        """Raises `ValueError`."""
        if not code.strip():
            raise ValueError(f"{environment}: environment.code: a Python file that defines respond, got nothing")
        self._environment = environment
        capacity = host_capacity()
        self._processes = SandboxedGrader(
            main=code + _WITHOUT_CONCLUDE, timeout_s=timeout_s, size=capacity.computing, most=capacity.most
        )

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        said = self._call("respond", prompt, turns)
        if isinstance(said, dict) and "observation" in said and set(said) <= _OBSERVATION_KEYS:
            text, role = said["observation"], said.get("role", "user")
            told = {name: said.get(name, "") for name in _OF_A_CALL}
            if all(isinstance(each, str) for each in (text, *told.values())) and role in ("user", "tool"):
                return Observation(text=text, role=role, **told)
        if isinstance(said, dict) and "reward" in said and set(said) <= _VERDICT_KEYS:
            return self._verdict(said)
        raise self._wrong(
            'respond: {"observation": …, "role": "user" or "tool"} or {"reward": …, "parts": …, "remark": …}', said
        )

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        said = self._call("conclude", prompt, turns)
        if said is None:
            return replace(UNFINISHED, remark=f"{UNFINISHED.remark}; a function `conclude` would have judged it")
        if isinstance(said, dict) and "reward" in said and set(said) <= _VERDICT_KEYS:
            return self._verdict(said)
        raise self._wrong('conclude: {"reward": …, "parts": …, "remark": …}', said)

    def _call(self, function: str, prompt: Prompt, turns: Sequence[Turn]) -> object:
        document = {
            "split": prompt.split,
            "ordinal": prompt.ordinal,
            "text": prompt.text,
            "facts": dict(prompt.facts),
        }
        return self._processes.call(function, document, [turn.text for turn in turns])

    def _verdict(self, said: Mapping[str, object]) -> Verdict:
        reward, parts, remark = said["reward"], said.get("parts", {}), said.get("remark", "")
        if not is_number(reward):
            raise self._wrong(f"reward: a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}", reward)
        if not isinstance(parts, dict) or not all(is_number(part) and 0 <= part <= 1 for part in parts.values()):
            raise self._wrong("parts: numbers from 0 to 1 by name", parts)
        return Verdict(
            reward=float(reward),  # type: ignore[arg-type]
            parts={name: float(part) for name, part in parts.items()},
            trusted=said.get("trusted", True) is True,
            remark=remark if isinstance(remark, str) else shown(remark),
        )

    def _wrong(self, wanted: str, got: object) -> GraderError:
        return GraderError(f"{self._environment}: {wanted}, got {shown(got)}", retryable=False)
