"""Validation of requests: a request that could never run is refused before anything is allocated.

Invariants:
- an accepted request ends, whatever else runs: it fits the model's positions and, alone, the KV cache;
- where the KV cache holds the prompt and only a part of the requested answer, the answer is cut after that part.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from engine.inference.port import SamplingParams, SequenceProgress, SequenceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    vocab_size: int
    max_positions: int
    kv_tokens: int
    """Tokens that fit the KV cache."""
    route_bytes: int = 0
    """Bytes of a token's routes; 0: the model or the engine has none."""

    def room(self, request: SequenceRequest) -> int:
        """The longest answer that this request can get."""
        return min(request.sampling.max_new_tokens, self.most_tokens - len(request.prompt_ids))

    @property
    def most_tokens(self) -> int:
        """Prompt and answer together."""
        return min(self.max_positions, self.kv_tokens)


class TooLong(ValueError):
    """The request leaves no room for an answer in the model's positions or the KV cache."""


class DrawKind(NamedTuple):
    """The parameters of a draw, apart from its seed."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @classmethod
    def of(cls, sampling: SamplingParams) -> Self:
        return cls(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def check_request(request: SequenceRequest, limits: Limits) -> None:
    name, prompt = request.sequence_id, request.prompt_ids
    if not 1 <= len(prompt) < limits.max_positions:
        refused = TooLong if prompt else ValueError
        raise refused(f"prompt_ids of {name!r}: from 1 to {limits.max_positions - 1} tokens, got {len(prompt)}")
    if not 0 <= min(prompt) <= max(prompt) < limits.vocab_size:
        raise ValueError(f"prompt_ids of {name!r}: each from 0 to {limits.vocab_size - 1}")
    _check_sampling(request.sampling, name)
    room, num_said = limits.room(request), len(request.progress.token_ids) if request.progress is not None else 0
    if len(prompt) + num_said >= limits.kv_tokens:
        raise TooLong(
            f"prompt_ids of {name!r}: prompt, progress and at least one more token must fit the KV cache (kv_tokens), "
            f"which holds {limits.kv_tokens} tokens; got {len(prompt) + num_said}"
        )
    if request.progress is not None:
        _check_progress(request.progress, name, room=room, limits=limits, num_prompt=len(prompt))


def check_whole_answer(request: SequenceRequest, limits: Limits) -> None:
    """Raises `ValueError` if the KV cache would cut the longest answer that the model's positions leave room for."""
    num_prompt = len(request.prompt_ids)
    room = replace(limits, kv_tokens=limits.max_positions).room(request)
    if num_prompt + room > limits.kv_tokens:
        raise ValueError(
            f"max_new_tokens of {request.sequence_id!r}: prompt and answer must fit the KV cache (kv_tokens), which "
            f"holds {limits.kv_tokens} tokens; got {num_prompt} and up to {room}"
        )


def _check_sampling(sampling: SamplingParams, name: str) -> None:
    rules = {
        "max_new_tokens: 1 or more": sampling.max_new_tokens >= 1,
        "temperature: 0 or more": sampling.temperature >= 0 and math.isfinite(sampling.temperature),
        "top_p: above 0, up to 1": 0 < sampling.top_p <= 1,
        "top_k: 0 or more": sampling.top_k >= 0,
        "min_p: from 0 to 1": 0 <= sampling.min_p <= 1,
        "stop: no empty string": all(sampling.stop),
    }
    for rule, is_kept in rules.items():
        if not is_kept:
            raise ValueError(f"sampling of {name!r}: {rule}, got {getattr(sampling, rule.split(':')[0])!r}")


def _check_progress(progress: SequenceProgress, name: str, *, room: int, limits: Limits, num_prompt: int) -> None:
    num_tokens = len(progress.token_ids)
    if not num_tokens == len(progress.logprobs) == len(progress.versions):
        raise ValueError(f"progress of {name!r}: a log-prob and a version for each token")
    if num_tokens >= room:
        raise ValueError(
            f"progress of {name!r}: fewer than {room} tokens, as at least one must be left; got {num_tokens}"
        )
    if not all(0 <= token < limits.vocab_size for token in progress.token_ids):
        raise ValueError(f"progress of {name!r}: each token from 0 to {limits.vocab_size - 1}")
    if progress.kv is not None and not 0 <= progress.kv.num_tokens <= num_prompt + num_tokens:
        raise ValueError(f"progress of {name!r}: pages of at most {num_prompt + num_tokens} tokens")
    num_bytes, size = len(progress.routes), limits.route_bytes
    if num_bytes > size * (num_prompt + num_tokens) or (size and num_bytes % size):
        raise ValueError(
            f"progress of {name!r}: routes of at most {num_prompt + num_tokens} tokens, {size} bytes each; "
            f"got {num_bytes} bytes"
        )
