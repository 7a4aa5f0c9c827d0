"""The border to a rollout engine. Token ids in, token ids with log-probs and versions out.

Invariants:
- every submitted sequence comes back exactly once, finished or aborted;
- a token's log-prob is the one of the distribution that it was drawn from; of a greedy token (temperature 0, where
  that would be certainty) it is the model's own, as at temperature 1;
- weights change only between two steps: every token knows the version that wrote it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.weights.port import WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    sequence_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    sequence_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reason: Literal["stop", "length", "aborted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    num_running: int
    num_waiting: int
    kv_used: float
    version: int


class RolloutEngine(Protocol):
    def submit(self, requests: Sequence[SequenceRequest]) -> None: ...

    def step(self) -> list[SequenceOutput]:
        """One token for every running sequence; those that ended come back."""

    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        """They come back with the tokens so far. Ids that are not in flight (any more) are passed over."""

    def install(self, weights: WeightVersion) -> None:
        """What is in flight goes on, on its KV cache as it is; whether it may is the schedule's decision."""

    def view(self) -> EngineView: ...
