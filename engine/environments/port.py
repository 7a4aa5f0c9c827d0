"""The border of every environment: a question, the answers to it, their worth.

A trajectory is a prompt, then turns of the model, each answered by `respond` with an `Observation` (go on, here is
what happened) or a `Verdict` (the end). A single-turn environment answers its first turn with a verdict.

Invariants:
- `prompt` is a pure function of (the environment's seed and parameters, split, ordinal); any process can rebuild it;
- no prompt is in both splits, whatever the seed;
- `respond` and `conclude` keep no state between calls: they are given all turns so far, so a trajectory can move
  between hosts;
- a grader that crashes or runs out of time raises `GraderError`; it never answers with reward 0, unless the text that
  it judged is what broke it: a model could otherwise choose to have no reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, runtime_checkable

Split = Literal["train", "held_out"]

Message = Mapping[str, Any]
"""As chat templates take it: `role`, `content`, and what else the model's own template knows."""
Tool = Mapping[str, Any]
"""What a tool is called, does and takes, as a JSON schema, for the chat template."""
Role = Literal["user", "tool"]

FailureKind = Literal["timeout", "error"]
"""The reason for no verdict: it took too long, or something else went wrong."""
Blame = Literal["user_code", "reward", "infrastructure"]
"""At fault is the environment's code or data, its judge, or something of ours; a class of failure."""


class GraderError(Exception):
    """The grader could not reach a verdict; the trajectory has no reward, which is not reward 0."""

    def __init__(
        self, message: str = "", *, retryable: bool = True, kind: FailureKind = "error", blame: Blame = "reward"
    ) -> None:
        super().__init__(message or type(self).__doc__)
        self.retryable, self.kind, self.blame = retryable, kind, blame


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    split: Split
    ordinal: int
    text: str
    """Under a chat template what a user says, unless there are messages."""
    facts: Mapping[str, str | int]
    """The data that the grader needs to judge an answer; never shown to the model.

    Whoever asks `respond` may add `sample`, the number of the trajectory in its group: waits are drawn by it.
    """
    messages: tuple[Message, ...] = ()
    """What is said instead of the text, where there is a chat template."""
    tools: tuple[Tool, ...] = ()
    """Those that a chat template tells the model of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    text: str
    """The model's text, end token included where the tokenizer gives it a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    text: str
    role: Role = "user"
    """Who says it, to a chat template."""
    # For people, like what follows; no model reads it but where it is part of the text:
    tool: str = ""
    """The tool that the turn called, and that this answers for; empty: none."""
    arguments: str = ""
    """Of that call, as the model wrote them."""
    error: str = ""
    """What went wrong with the call; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    reward: float
    parts: Mapping[str, float]
    """Named measurements behind the reward, each in 0..1, for charts; the reward need not be their sum."""
    trusted: bool
    """False where the answer could have tampered with the grader: the reward is kept and shown, and nothing is
    learned from it."""
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
        """Called when `respond` returned an observation and the model has no tokens or no context left for a turn."""
        ...


UNFINISHED: Final = Verdict(
    reward=0.0, parts={}, trusted=True, remark="truncated before the environment reached a verdict"
)


def conclude(environment: Environment, prompt: Prompt, turns: Sequence[Turn]) -> Verdict:
    return environment.conclude(prompt, turns) if isinstance(environment, JudgesUnfinished) else UNFINISHED
