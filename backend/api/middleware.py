"""Middleware around every request: its id, its caller's remaining rate, and problem responses under /api/ and
/internal/.

Invariants:
- every response, of a page too, carries X-Request-Id; a caller's own id is kept if it is a plain word;
- `current_request` is set exactly while a request is handled;
- no HTML error page leaves /api/ or /internal/, not even one that Django made before a route was found.
"""

import re
import secrets
import time
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from backend.api.handlers import DATABASE_IS_AWAY, log_failure, refusal_for_status
from backend.api.limits.rate_limit import allowance_of
from backend.api.problems import CONTENT_TYPE, RETRY_AFTER_S, problem_response
from backend.api.request_context import REQUEST_ID, RequestContext, current_request
from backend.api.request_times import note_request
from backend.borders.proxies import client_ip
from backend.borders.wall import FOR_PROGRAMS

_PLAIN_WORD = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class RequestIdMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        sent = request.headers.get("X-Request-Id", "")
        request_id = sent if _PLAIN_WORD.fullmatch(sent) else f"req_{secrets.token_hex(10)}"
        request.META[REQUEST_ID] = request_id
        ip = client_ip(request, trusted=settings.ENVIRONMENT.trusted_proxies)
        began = time.monotonic()
        before = current_request.set(RequestContext(request_id=request_id, ip=ip))
        try:
            response = self.get_response(request)
        finally:
            current_request.reset(before)
        if response.status_code >= 400 and request.path.startswith(FOR_PROGRAMS):
            response = _as_problem(request, response)
        response["X-Request-Id"] = request_id
        note_request(request, response.status_code, time.monotonic() - began)
        allowance = allowance_of(request)
        if allowance and "RateLimit" not in response:
            for name, value in allowance.headers.items():
                response[name] = value
        return response

    def process_exception(self, request: HttpRequest, failure: Exception) -> HttpResponse | None:
        """Answers a page with 503 if the database fails; routes of the API never get here."""
        if not isinstance(failure, DATABASE_IS_AWAY):
            return None
        log_failure(request, failure)
        text = "The database is not responding. Please try again in a moment."
        return HttpResponse(
            text, status=503, content_type="text/plain; charset=utf-8", headers={"Retry-After": str(RETRY_AFTER_S)}
        )


def _as_problem(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if response.get("Content-Type", "").startswith((CONTENT_TYPE, "application/json")):
        return response
    problem = problem_response(request, refusal_for_status(response.status_code))
    for name, value in response.items():  # Allow, and security headers
        if not name.startswith("Content-T") and not name.startswith("Content-L"):
            problem.headers.setdefault(name, value)
    return problem
