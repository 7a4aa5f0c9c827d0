"""The request that is being worked on, for whatever writes it down or counts it: the audit log, a limit by address, a
line of the log.

Invariant: outside a request (a background task, a command) both are empty.
"""

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from backend.borders.proxies import neighbourhood

REQUEST_ID = "laminar.request_id"  # where `middleware` leaves it in request.META


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    request_id: str = ""
    ip: str = ""


_NONE = RequestContext()
current_request: ContextVar[RequestContext] = ContextVar("laminar_request", default=_NONE)


def stranger() -> str:
    """Whom every limit by address counts. Who has an IPv6 network has 2**64 addresses, and is one stranger."""
    return neighbourhood(current_request.get().ip)


class NameRequest(logging.Filter):
    """Gives each record the id of its request. Django logs a refusal once the request is over, and hands it along."""

    def filter(self, record: logging.LogRecord) -> bool:
        handed = getattr(getattr(record, "request", None), "META", {})
        record.request_id = current_request.get().request_id or handed.get(REQUEST_ID, "")
        return True
