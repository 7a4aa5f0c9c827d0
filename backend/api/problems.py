"""Errors of the REST API as application/problem+json (RFC 9457).

Invariants:
- every error response has this one shape and carries its request's id;
- an error that may pass has a Retry-After header.
"""

import json
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, ConfigDict

from backend.api.request_context import REQUEST_ID
from backend.errors import FieldError, Refusal

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 5


class Unauthenticated(Refusal):
    """Send a valid API key: `Authorization: Bearer lam_live_…`."""

    status = 401
    code = "unauthenticated"


class Malformed(Refusal):
    """The body is not valid JSON."""

    status = 400
    code = "malformed"


class TooLarge(Refusal):
    """The request body is too large."""

    status = 413
    code = "too_large"


class UnsupportedMediaType(Refusal):
    """Send the body as application/json in UTF-8."""

    status = 415
    code = "unsupported_media_type"


class TooManyRequests(Refusal):
    """Too many requests with this key. Retry after the time in Retry-After."""

    status = 429
    code = "too_many_requests"
    retryable = True


class Unavailable(Refusal):
    """The service is unavailable. Retry the request in a moment."""

    status = 503
    code = "unavailable"
    retryable = True


class Unexpected(Refusal):
    """Internal error. Try again; if it persists, report the request id to an operator."""

    status = 500
    code = "internal_error"
    retryable = True


class Problem(BaseModel):
    """A problem of RFC 9457. `errors` lists every invalid field. `retryable`: the same request may succeed later."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    errors: list[FieldError]
    retryable: bool


def problems(*statuses: int) -> dict[int, type[Problem]]:
    """For a route's `response=`: its error statuses, plus those that every route may return."""
    return dict.fromkeys(sorted({401, 403, 429, 500, 503, *statuses}), Problem)


def problem_document(refusal: Refusal, *, instance: str, request_id: str) -> dict[str, Any]:
    return refusal.extensions | {
        "type": f"urn:laminar:problem:{refusal.code}",
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "detail": refusal.detail,
        "instance": instance,
        "code": refusal.code,
        "request_id": request_id,
        "errors": [asdict(error) for error in refusal.errors],
        "retryable": refusal.retryable,
    }


def problem_response(request: HttpRequest, refusal: Refusal) -> HttpResponse:
    document = problem_document(refusal, instance=request.path, request_id=request.META.get(REQUEST_ID, ""))
    response = HttpResponse(json.dumps(document), status=refusal.status, content_type=CONTENT_TYPE)
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    if refusal.retryable and refusal.status != HTTPStatus.INTERNAL_SERVER_ERROR:
        response["Retry-After"] = str(RETRY_AFTER_S)
    for name, value in refusal.headers.items():
        response[name] = value
    return response
