"""The request that is being worked on, for whatever writes it down or counts it: the audit log, a limit by address.

Invariant: outside a request (a background task, a command) both are empty.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from backend.borders.proxies import neighbourhood


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    request_id: str = ""
    ip: str = ""


_NONE = RequestContext()
current_request: ContextVar[RequestContext] = ContextVar("laminar_request", default=_NONE)


def stranger() -> str:
    """Whom every limit by address counts. Who has an IPv6 network has 2**64 addresses, and is one stranger."""
    return neighbourhood(current_request.get().ip)
