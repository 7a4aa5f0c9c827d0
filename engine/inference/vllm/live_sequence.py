"""A sequence in vLLM, as it is known outside of it: what it has said, and which weights write it."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from engine.inference.port import KvPages, SequenceOutput, SequenceProgress, SequenceRequest
from engine.inference.stop import StopWatcher


@dataclass(slots=True, eq=False)
class Held:
    """Weights that sequences decode on, as they are now."""

    version: int
    salt: str
    """Cached keys and values are found by tokens and salt."""
    adapter: Any = None
    """Beside the engine's weights: vLLM's word for it."""
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
    """Some of its keys and values are of an earlier version."""
    stop: StopWatcher | None = None
    vllm_id: str = ""
    ended: Literal["stop", "length"] | None = None
    """It is told by the next step."""
    routes: bytearray = field(default_factory=bytearray)

    @classmethod
    def begun(cls, request: SequenceRequest, max_new_tokens: int, held: Held, stop: StopWatcher | None) -> Self:
        """Here, or elsewhere."""
        live, said = cls(replace(request, progress=None), max_new_tokens, held, stop=stop), request.progress
        if said is not None:
            live.token_ids += said.token_ids
            live.logprobs += said.logprobs
            live.versions += said.versions
            live.routes += said.routes
            for token in said.token_ids:
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
        """Of one that has ended, without the last token: whoever takes it draws that again, and sees that it ends."""
        num_told = len(self.token_ids) - (self.ended is not None)
        if not num_told:
            return self.request
        said = SequenceProgress(
            token_ids=tuple(self.token_ids[:num_told]),
            logprobs=tuple(self.logprobs[:num_told]),
            versions=tuple(self.versions[:num_told]),
            kv=kv,
            routes=bytes(self.routes),
        )
        return replace(self.request, progress=said)
