"""A customer's own `respond`, in sandboxed processes that stay warm.

    def respond(prompt, turns) -> {"observation": …, "role": …} or {"reward": …, "parts": {…}, "remark": …}
    def conclude(prompt, turns) -> {"reward": …, "parts": {…}, "remark": …}     optional: judges truncated trajectories

An observation may also name the "tool" that the turn called, its "arguments" and its "error": texts that the
trajectory's page shows.

Invariants:
- an exception of the function, a return value of another shape and a timeout become a `GraderError` that shows the
  author where;
- an answer that is too long to be sent to the function has reward 0: the function could not handle it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from engine.environments.border import MAX_REWARD, is_number, shown
from engine.environments.judging.graders import SandboxedGrader, SpoiltByText
from engine.environments.port import UNFINISHED, GraderError, Observation, Prompt, Turn, Verdict
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.sandbox.inside.frames import MAX_BYTES, packed

_WITHOUT_CONCLUDE: Final = """

if "conclude" not in globals():
    def conclude(prompt, turns):
        return None
"""
_CALL_KEYS: Final = ("tool", "arguments", "error")
_OBSERVATION_KEYS: Final = frozenset({"observation", "role", *_CALL_KEYS})
_VERDICT_KEYS: Final = frozenset({"reward", "parts", "remark", "trusted"})


class OwnJudge:
    def __init__(self, environment: str, *, code: str, timeout_s: float) -> None:
        """Raises `ValueError`."""
        if not code.strip():
            raise ValueError(f"{environment}: environment.code: required, a Python file that defines respond")
        self._environment = environment
        capacity = host_capacity()
        self._processes = SandboxedGrader(
            main=code + _WITHOUT_CONCLUDE, timeout_s=timeout_s, size=capacity.computing, most=capacity.most
        )

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        try:
            response = self._call("respond", prompt, turns)
        except SpoiltByText as spoilt:
            return spoilt.verdict
        if isinstance(response, dict) and "observation" in response and set(response) <= _OBSERVATION_KEYS:
            text, role = response["observation"], response.get("role", "user")
            call = {name: response.get(name, "") for name in _CALL_KEYS}
            if all(isinstance(each, str) for each in (text, *call.values())) and role in ("user", "tool"):
                return Observation(text=text, role=role, **call)
        if isinstance(response, dict) and "reward" in response and set(response) <= _VERDICT_KEYS:
            return self._as_verdict(response)
        raise self._shape_error(
            'respond: {"observation": …, "role": "user" or "tool"} or {"reward": …, "parts": …, "remark": …}', response
        )

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        try:
            verdict = self._call("conclude", prompt, turns)
        except SpoiltByText as spoilt:
            return spoilt.verdict
        if verdict is None:
            return replace(UNFINISHED, remark=f"{UNFINISHED.remark}; define `conclude` to judge such trajectories")
        if isinstance(verdict, dict) and "reward" in verdict and set(verdict) <= _VERDICT_KEYS:
            return self._as_verdict(verdict)
        raise self._shape_error('conclude: {"reward": …, "parts": …, "remark": …}', verdict)

    def _call(self, function: str, prompt: Prompt, turns: Sequence[Turn]) -> object:
        document = {
            "split": prompt.split,
            "ordinal": prompt.ordinal,
            "text": prompt.text,
            "facts": dict(prompt.facts),
        }
        texts = [turn.text for turn in turns]
        try:
            return self._processes.call(function, document, texts)
        except GraderError:
            if not _can_be_sent(document, texts) and _can_be_sent(document, []):
                raise SpoiltByText(f"a message to {function} has at most {MAX_BYTES} bytes") from None
            raise

    def _as_verdict(self, response: Mapping[str, object]) -> Verdict:
        reward, parts, remark = response["reward"], response.get("parts", {}), response.get("remark", "")
        if not is_number(reward):
            raise self._shape_error(f"reward: a finite number from {-MAX_REWARD:g} to {MAX_REWARD:g}", reward)
        if not isinstance(parts, dict) or not all(is_number(part) and 0 <= part <= 1 for part in parts.values()):
            raise self._shape_error("parts: numbers from 0 to 1 by name", parts)
        return Verdict(
            reward=float(reward),  # type: ignore[arg-type]
            parts={name: float(part) for name, part in parts.items()},
            trusted=response.get("trusted", True) is True,
            remark=remark if isinstance(remark, str) else shown(remark),
        )

    def _shape_error(self, rule: str, got: object) -> GraderError:
        return GraderError(f"{self._environment}: {rule}, got {shown(got)}", retryable=False)


def _can_be_sent(document: Mapping[str, object], texts: Sequence[str]) -> bool:
    try:
        packed([document, texts, "0" * 256])
    except ValueError:
        return False
    return True
