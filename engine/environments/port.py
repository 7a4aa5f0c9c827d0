"""The port of every environment: a prompt, the model's turns, and their verdict.

A trajectory is a prompt, then turns of the model. `respond` answers each turn with an `Observation`, which the next
turn reads, or with a `Verdict`, which ends the trajectory. A single-turn environment answers its first turn with one.

Invariants:
- `prompt` is a pure function of (the environment's seed and parameters, split, ordinal); any process can rebuild it;
- no prompt is in both splits, whatever the seed;
- `respond` and `conclude` keep no state between calls: they are given all turns so far, so a trajectory can move
  between hosts;
- a grader that crashes or times out raises `GraderError`. It returns reward 0 only if the judged text broke it: a
  model could otherwise choose to have no reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

Split = Literal["train", "held_out"]

Message = Mapping[str, Any]
"""As chat templates take it: `role`, `content`, and any field that the model's own template reads."""
Tool = Mapping[str, Any]
"""A tool's JSON schema (name, description, parameters) for the chat template."""
Role = Literal["user", "tool"]

FailureKind = Literal["timeout", "error"]
"""Why there is no verdict: a timeout, or any other error."""
Blame = Literal["user_code", "reward", "infrastructure", "platform"]
"""The class of the failure: the environment's code or data, its judge, a sandbox that did not start
(`infrastructure`), or an unknown cause, such as a host without a free core (`platform`)."""


class GraderError(Exception):
    """The grader could not reach a verdict; the trajectory has no reward, which is not reward 0."""

    def __init__(
        self, message: str = "", *, retryable: bool = True, kind: FailureKind = "error", blame: Blame = "reward"
    ) -> None:
        super().__init__(message or type(self).__doc__)
        self.retryable, self.kind, self.blame = retryable, kind, blame

    @property
    def is_of_platform(self) -> bool:
        """False: the environment's code, data or judge is at fault."""
        return self.blame in ("infrastructure", "platform")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    split: Split
    ordinal: int
    text: str
    """Under a chat template the content of a user's message, unless there are messages."""
    facts: Mapping[str, str | int]
    """The data that the grader needs to judge an answer; never shown to the model.

    The caller of `respond` may add `sample`, the number of the trajectory in its group: waits are drawn by it.
    """
    messages: tuple[Message, ...] = ()
    """Replace the text where there is a chat template."""
    tools: tuple[Tool, ...] = ()
    """The tools that a chat template describes to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    text: str
    """The model's text, including the end token if the tokenizer decodes that to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    text: str
    role: Role = "user"
    """The role of the message under a chat template."""
    # The fields below are for display; the model reads them only where the text repeats them:
    tool: str = ""
    """The tool that the turn called, whose result this is; empty: none."""
    arguments: str = ""
    """The arguments of that call, as the model wrote them."""
    error: str = ""
    """The error of the call; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    reward: float
    parts: Mapping[str, float]
    """Named measurements behind the reward, each in 0..1, for charts; the reward need not be their sum."""
    trusted: bool
    """False where the answer could have tampered with the grader: the reward is stored and shown, but not trained
    on."""
    remark: str
    """One sentence for a person."""


class Environment(Protocol):
    @property
    def name(self) -> str: ...

    def prompt(self, split: Split, ordinal: int) -> Prompt: ...

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict: ...


@runtime_checkable
class JudgesUnfinished(Protocol):
    """An environment that judges truncated trajectories. Other environments give them reward 0."""

    def conclude(self, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
        """Called when `respond` returned an observation but the model has no tokens or no context left for a turn."""
        ...


UNFINISHED: Final = Verdict(
    reward=0.0, parts={}, trusted=True, remark="truncated before the environment reached a verdict"
)


def conclude(environment: Environment, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
    return environment.conclude(prompt, turns) if isinstance(environment, JudgesUnfinished) else UNFINISHED
