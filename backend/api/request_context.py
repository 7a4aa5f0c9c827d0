"""The request that is being worked on, for whatever writes it down: the audit log, a line in a log.

Invariant: outside a request (a background task, a command) both are empty.
"""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    request_id: str = ""
    ip: str = ""


_NONE = RequestContext()
current_request: ContextVar[RequestContext] = ContextVar("laminar_request", default=_NONE)
