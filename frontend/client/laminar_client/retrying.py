"""Retries: which requests, and with which pauses.

Invariants:
- a request that may have taken effect is retried only if that is safe: a GET, or a POST with an Idempotency-Key or
  idempotent by contract. Status 429 means no effect, so a retry is always safe;
- the server's Retry-After is never shortened; if it exceeds the client's patience, retries end;
- pauses grow exponentially with jitter, so that many clients do not retry at once.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import ApiError, LaminarError, Unreachable
from .wire import Effect, Emit, Lost, Pause, Reply, Request, Send

T = TypeVar("T")
# Transient: too many requests, a restarting server, a gateway whose server restarts.
_PASSING = frozenset({429, 502, 503, 504})
_REPEATED_ONCE_KNOWN = frozenset({"in_flight"})  # the first request is still being processed


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """At most `tries` tries; pauses double from `first_pause_s` up to `longest_pause_s`."""

    tries: int = 6
    first_pause_s: float = 0.25
    longest_pause_s: float = 8.0
    longest_retry_after_s: float = 60.0
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def pause_s(self, tried: int, error: ApiError | None) -> float | None:
        """None: do not retry."""
        if tried >= self.tries:
            return None
        most: float = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (tried - 1))
        pause = most * self.rng.uniform(0.5, 1.0)
        retry_after_s = error.retry_after_s if error is not None else None
        if retry_after_s is None:
            return pause
        return retry_after_s + pause if retry_after_s <= self.longest_retry_after_s else None


def may_repeat(request: Request, error: ApiError | None) -> bool:
    """`error` None: there was no response."""
    if error is None:
        return request.repeatable
    if error.status == 429:
        return True
    return request.repeatable and (error.status in _PASSING or error.code in _REPEATED_ONCE_KNOWN)


def persistent(
    procedure: Generator[Effect | Emit[Any], Any, T], patience: Patience
) -> Generator[Effect | Emit[Any], Any, T]:
    """The same procedure with retries: `Send` returns a successful reply or raises a `LaminarError`."""
    outcome: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = procedure.throw(failure) if failure is not None else procedure.send(outcome)
        except StopIteration as done:
            result: T = done.value
            return result
        outcome, failure = None, None
        try:
            outcome = (yield from _sent(effect.request, patience)) if isinstance(effect, Send) else (yield effect)
        except (LaminarError, Lost) as error:
            failure = error


def _sent(request: Request, patience: Patience) -> Generator[Effect, Any, Reply]:
    tried = 0
    while True:
        tried += 1
        refused: ApiError | None = None
        cause: LaminarError
        try:
            reply: Reply = yield Send(request)
        except Lost as lost:
            cause = Unreachable(str(lost))
        else:
            if reply.is_good:
                return reply
            cause = refused = reply.error()
        pause = patience.pause_s(tried, refused) if may_repeat(request, refused) else None
        if pause is None:
            raise cause from None
        yield Pause(pause)
