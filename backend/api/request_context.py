"""The current request's id and client address, for the audit log, rate limits by address, and log lines.

Invariant: outside a request (a background task, a command) both are empty.
"""

import logging
from contextvars import ContextVar
from dataclasses import dataclass

from backend.borders.proxies import neighbourhood

REQUEST_ID = "laminar.request_id"  # its key in request.META


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    request_id: str = ""
    ip: str = ""


_NONE = RequestContext()
current_request: ContextVar[RequestContext] = ContextVar("laminar_request", default=_NONE)


def stranger() -> str:
    """The client's address for rate limits. An IPv6 network counts as one: it has 2**64 addresses."""
    return neighbourhood(current_request.get().ip)


class NameRequest(logging.Filter):
    """Sets each record's request id. Django logs a refusal after the request, and passes the request along."""

    def filter(self, record: logging.LogRecord) -> bool:
        meta = getattr(getattr(record, "request", None), "META", {})
        record.request_id = current_request.get().request_id or meta.get(REQUEST_ID, "")
        return True
