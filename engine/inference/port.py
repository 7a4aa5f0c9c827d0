"""The port of a rollout engine. Token ids in, token ids with log-probs and versions out.

Invariants:
- every submitted sequence comes back exactly once, finished or aborted;
- a token's log-prob is over the whole vocabulary at the request's temperature, whatever top-p, top-k and min-p cut off,
  so a trainer can recompute it. For a greedy token (temperature 0) it is the model's own, as at temperature 1;
- weights change only between two steps: every token carries the version that wrote it.
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
    """The answer ends with the token that completes one of these strings; the token is part of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPages:
    """Keys and values of the first `num_tokens` tokens, in the named layout of an engine.

    An engine imports pages of its own layout and its current weights' version, and recomputes any others."""

    layout: str
    version: int
    num_tokens: int
    data: bytes | memoryview
    mixed: bool = False
    """An earlier version computed some of them: the sequence continues with them, but no other may share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceProgress:
    """The tokens of a sequence so far, from this engine or others."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    kv: KvPages | None = None
    routes: bytes = b""
    """The experts of the first tokens (engine/models/routes.py), the prompt's included; empty for a dense model."""


NOTHING_SAID: Final = SequenceProgress(token_ids=(), logprobs=(), versions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRequest:
    sequence_id: str
    prompt_ids: tuple[int, ...]
    """Everything before the answer; for a later turn also the earlier turns and observations."""
    sampling: SamplingParams
    progress: SequenceProgress | None = None
    """Continues a sequence that began elsewhere. `max_new_tokens` includes the tokens of the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    sequence_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    reason: Literal["stop", "length", "aborted"]
    routes: bytes = b""
    """As in a progress, for all tokens that the model has read, so not for the last one. An engine may return none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    num_running: int
    num_waiting: int
    kv_used: float
    """The share of the cache, 0 … 1, that live sequences hold; pages kept only for reuse do not count."""
    version: int
    num_prefilled: int = 0
    """Prompt tokens whose keys and values were computed since the start; shared ones count once."""
    num_decoded: int = 0
    """Tokens generated since the start."""


class KvRoom(Protocol):
    """Memory for the pages of exported sequences."""

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        """Memory for one sequence's `pages`, still without data. None: no memory; the sequence is exported without."""

    def filled(self, num_bytes: int) -> None:
        """The first `num_bytes` bytes of the memory taken last are written: another layer, or all."""


class OwnRoom:
    """Memory of this process."""

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        return memoryview(bytearray(num_bytes))

    def filled(self, num_bytes: int) -> None:
        """No-op: no reader waits for the bytes."""


OWN_ROOM: Final = OwnRoom()


class RolloutEngine(Protocol):
    def submit(self, requests: Sequence[SequenceRequest]) -> None:
        """All or none. Raises `ValueError` for a request that can never run."""

    def step(self) -> list[SequenceOutput]:
        """Generates at most one token for every running sequence; returns the sequences that ended."""

    def abort(self, sequence_ids: Sequence[str]) -> list[SequenceOutput]:
        """Returns the sequences with their tokens so far. Ignores ids that are not in flight (any more)."""

    def export(
        self, sequence_ids: Sequence[str], *, leave: bool, with_kv: bool, room: KvRoom = OWN_ROOM
    ) -> list[SequenceRequest]:
        """Requests that continue the sequences elsewhere. With `leave` the engine drops them without an output. Ignores
        ids that are not in flight (any more). `with_kv`: exports pages too, if the engine can."""

    def install(self, weights: WeightVersion) -> None:
        """Sequences in flight continue on their present KV cache; whether they may is the schedule's decision. Blocks
        kept only for reuse are forgotten. An engine that can read its weights back raises `OtherWeights` if they differ
        from the published ones; it must not be used then."""

    def probe(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        """The log-prob of each token but the first, given all before it, under the current weights at temperature 1;
        of fewer tokens if there is no room for all. Does not affect sequences in flight."""

    def view(self) -> EngineView: ...
