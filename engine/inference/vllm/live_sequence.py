"""Our record of a sequence in vLLM: its tokens so far, and the weights that it decodes on."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from engine.inference.port import KvPages, SequenceOutput, SequenceProgress, SequenceRequest
from engine.inference.stop import StopWatcher


@dataclass(slots=True, eq=False)
class Held:
    """The current weights that a group of sequences decodes on."""

    version: int
    salt: str
    """Cached keys and values are found by tokens and salt."""
    adapter: Any = None
    """An adapter in addition to the engine's weights, as vLLM's request object."""
    num_prefilled: int = 0
    num_decoded: int = 0


@dataclass(slots=True)
class LiveSequence:
    request: SequenceRequest
    max_new_tokens: int
    held: Held
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    is_prefilled: bool = False
    is_mixed: bool = False
    """An earlier version computed some of its keys and values."""
    stop: StopWatcher | None = None
    vllm_id: str = ""
    ended: Literal["stop", "length"] | None = None
    """The next step returns it."""
    routes: bytearray = field(default_factory=bytearray)
    new_routes: list[Any] = field(default_factory=list)
    """Routes of later tokens in vLLM's form: those of a single token cost as much to pack as those of hundreds."""

    @classmethod
    def from_request(cls, request: SequenceRequest, max_new_tokens: int, held: Held, stop: StopWatcher | None) -> Self:
        """A new sequence, or one that began elsewhere."""
        live, progress = cls(replace(request, progress=None), max_new_tokens, held, stop=stop), request.progress
        if progress is not None:
            live.token_ids += progress.token_ids
            live.logprobs += progress.logprobs
            live.versions += progress.versions
            live.routes += progress.routes
            for token in progress.token_ids:
                live.completes_stop(token)
        return live

    @property
    def context(self) -> list[int]:
        return [*self.request.prompt_ids, *self.token_ids]

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.token_ids)

    def completes_stop(self, token: int) -> bool:
        return self.stop is not None and self.stop.completes(token)

    def end(self, reason: Literal["stop", "length", "aborted"]) -> SequenceOutput:
        return SequenceOutput(
            sequence_id=self.request.sequence_id,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            reason=reason,
            routes=bytes(self.routes),
        )

    def as_request(self, kv: KvPages | None) -> SequenceRequest:
        """Omits the last token of an ended sequence: the importing engine draws it again and detects the end."""
        num_tokens = len(self.token_ids) - (self.ended is not None)
        if not num_tokens:
            return self.request
        progress = SequenceProgress(
            token_ids=tuple(self.token_ids[:num_tokens]),
            logprobs=tuple(self.logprobs[:num_tokens]),
            versions=tuple(self.versions[:num_tokens]),
            kv=kv,
            routes=bytes(self.routes),
        )
        return replace(self.request, progress=progress)
