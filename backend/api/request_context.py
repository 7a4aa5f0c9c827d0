"""The request that is being worked on, for whatever writes it down: the audit log, a line in a log.

Invariants:
- outside a request (a background task, a command) both are empty;
- X-Forwarded-For is believed only of a proxy that the environment names, and then only its last stranger: whoever
  calls can write anything to the left of what our own proxy adds.
"""

import ipaddress
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass

from django.http import HttpRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    request_id: str = ""
    ip: str = ""


_NONE = RequestContext()
current_request: ContextVar[RequestContext] = ContextVar("laminar_request", default=_NONE)


def client_ip(request: HttpRequest, *, trusted_proxies: Collection[str]) -> str:
    """The address that the request came from, as text; empty where a server gives none (a unix socket)."""
    peer = _address(request.META.get("REMOTE_ADDR", ""))
    if peer not in trusted_proxies:
        return peer
    for hop in reversed(request.headers.get("X-Forwarded-For", "").split(",")):
        address = _address(hop.strip())
        if not address:
            break
        peer = address
        if address not in trusted_proxies:
            break
    return peer


def came_through_a_proxy(request: HttpRequest) -> bool:
    return "X-Forwarded-For" in request.headers or "Forwarded" in request.headers


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
