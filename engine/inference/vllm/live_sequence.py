"""A sequence in vLLM, as it is known outside of it: what it has said, and which version wrote that."""

from dataclasses import dataclass, field, replace
from typing import Literal

from engine.inference.port import KvPages, SequenceOutput, SequenceProgress, SequenceRequest
from engine.inference.stop import StopWatcher


@dataclass(slots=True)
class LiveSequence:
    request: SequenceRequest
    max_new_tokens: int
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

    @property
    def context(self) -> list[int]:
        return [*self.request.prompt_ids, *self.token_ids]

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
