"""The border to a rollout engine. Token ids in, token ids with log-probs and versions out.

Invariants:
- every submitted sequence comes back exactly once, finished or aborted;
- a token's log-prob is of the whole vocabulary at the request's temperature, whatever top-p, top-k and min-p cut off:
  it is what a trainer can compute again. Of a greedy token (temperature 0) it is the model's own, as at temperature 1;
- weights change only between two steps: every token knows the version that wrote it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from engine.weights.port import WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    max_new_tokens: int
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    """The text ends with the token that completes one of these; it is part of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPages:
    """Keys and values of the first `num_tokens` tokens, in the layout of the engine that names it.

    An engine takes pages of its own layout and of the weights' version that it holds; any other it recomputes."""

    layout: str
    version: int
    num_tokens: int
    data: bytes | memoryview
    mixed: bool = False
    """Some of it was computed by an earlier version: the sequence goes on with it, no other may share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceProgress:
    """The tokens of a sequence so far, wherever they were written."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    kv: KvPages | None = None
    routes: bytes = b""
    """The experts that the first tokens met (engine/models/routes.py), the prompt's included; of a dense model none."""


NOTHING_SAID: Final = SequenceProgress(token_ids=(), logprobs=(), versions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    sequence_id: str
    prompt_ids: tuple[int, ...]
    """Everything before the answer: of a later turn, the earlier turns and what was observed."""
    sampling: SamplingParams
    progress: SequenceProgress | None = None
    """It was begun elsewhere and goes on from here. `max_new_tokens` counts the tokens of the progress too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    sequence_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reason: Literal["stop", "length", "aborted"]
    routes: bytes = b""
    """As of a progress: of all tokens that were read, which the last one never is. An engine may have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    num_running: int
    num_waiting: int
    kv_used: float
    """0 … 1 of the cache that live sequences hold; pages kept only for reuse do not count."""
    version: int
    num_prefilled: int = 0
    """Tokens whose keys and values were computed from a prompt, since the start; shared ones count once."""
    num_decoded: int = 0
    """Tokens that were generated, since the start."""


class KvRoom(Protocol):
    """Memory for the pages of sequences that are exported."""

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        """For one of them. `pages`: as they will be, without their data. None: there is none, so it goes without."""

    def filled(self, num_bytes: int) -> None:
        """The first so many bytes of what was taken last are there: a layer more, or all."""


class OwnRoom:
    """Memory of this process."""

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        return memoryview(bytearray(num_bytes))

    def filled(self, num_bytes: int) -> None:
        """Nobody waits for it."""


OWN_ROOM: Final = OwnRoom()


class RolloutEngine(Protocol):
    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """All or none; `ValueError` for what can never run."""

    def step(self) -> list[SequenceOutput]:
        """At most one token for every running sequence; those that ended come back."""

    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        """They come back with the tokens so far. Ids that are not in flight (any more) are passed over."""

    def export(
        self, sequence_ids: Sequence[str], *, leave: bool, with_kv: bool, room: KvRoom = OWN_ROOM
    ) -> list[SequenceRequest]:
        """As they are now, to go on elsewhere; with `leave` they are gone from here and never come back as outputs.
        Ids that are not in flight (any more) are passed over. `with_kv` is a wish: an engine that cannot, does not."""

    def install(self, weights: WeightVersion) -> None:
        """Sequences in flight go on, on their KV cache as it is; whether they may is the schedule's decision. Blocks
        kept only for reuse are forgotten. An engine that can read back what it holds raises `OtherWeights` where that
        is not what was published; it is of no use then."""

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """The log-prob of each but the first, after all before it, by the weights as they are, at temperature 1; of
        fewer where there is no room for all. Sequences in flight do not move, and none of them notices."""

    def view(self) -> EngineView: ...
