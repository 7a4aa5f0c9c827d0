"""When a request is sent again, and after which pause.

Invariants:
- a request that may have had its effect is repeated only if a repetition is harmless: a GET, or a POST that carries an
  Idempotency-Key or is idempotent by contract. Status 429 says that there was no effect, so it is always safe;
- the server's Retry-After is kept, never shortened; one that is longer than the patience ends the tries;
- pauses grow and are spread by chance, so that many clients do not come back at once.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import ApiError, LaminarError, Unreachable
from .wire import Effect, Emit, Lost, Pause, Reply, Request, Send

T = TypeVar("T")
# What passes by itself: too fast, a server that restarts, a gateway whose server restarts.
_PASSING = frozenset({429, 502, 503, 504})
_REPEATED_ONCE_KNOWN = frozenset({"in_flight"})  # our own first request is still being worked on


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """`tries` in all; pauses of `first_pause_s`, twice that, and so on, up to `longest_pause_s`."""

    tries: int = 6
    first_pause_s: float = 0.25
    longest_pause_s: float = 8.0
    longest_retry_after_s: float = 60.0
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def pause_s(self, tried: int, error: ApiError | None) -> float | None:
        """None: it is not worth another try."""
        if tried >= self.tries:
            return None
        most: float = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (tried - 1))
        pause = most * self.rng.uniform(0.5, 1.0)
        told = error.retry_after_s if error is not None else None
        if told is None:
            return pause
        return told + pause if told <= self.longest_retry_after_s else None


def may_repeat(request: Request, error: ApiError | None) -> bool:
    """`error` None: no answer came."""
    if error is None:
        return request.repeatable
    if error.status == 429:
        return True
    return request.repeatable and (error.status in _PASSING or error.code in _REPEATED_ONCE_KNOWN)


def persistent(
    procedure: Generator[Effect | Emit[Any], Any, T], patience: Patience
) -> Generator[Effect | Emit[Any], Any, T]:
    """The same procedure, whose `Send` gives a good reply or raises a `LaminarError`."""
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
