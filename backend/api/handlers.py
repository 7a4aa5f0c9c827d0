"""Maps exceptions to problem responses.

Invariants:
- no internals (tracebacks, SQL) leave the process; an unexpected exception is logged with the request's id and
  answered with 500;
- a database that does not answer, or accepts no writes, is 503 with Retry-After: the caller may retry;
- all validation errors of a request are reported together, each with a pointer: into the body (/spec/training/steps),
  or to /query/…, /header/… and /path/….
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, Throttled, ValidationError

from backend.api.bodies import parsed_body
from backend.api.limits.rate_limit import RateExceeded, allowance_of
from backend.api.problems import (
    Malformed,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    Unexpected,
    problem_response,
)
from backend.api.request_context import REQUEST_ID
from backend.errors import FieldError, Invalid, NotFound, Refusal, merged, pointer_into, value_in
from engine.spec.settings.invalid_fields import NOT_GIVEN, field_message

log = logging.getLogger(__name__)

DATABASE_IS_AWAY = (OperationalError, InterfaceError, InternalError)  # the last one: read-only


def answer_with_problems(api: NinjaAPI) -> None:
    """Turns every exception of a route of `api` into a problem response."""
    for kind in (ValidationError, HttpError, Http404, Exception):  # the first three replace ninja's own handlers
        api.add_exception_handler(kind, _answer)


def _answer(request: HttpRequest, failure: Exception | type[Exception]) -> HttpResponse:
    assert isinstance(failure, Exception), "ninja's type also allows a class; nothing raises one"
    refusal = _refusal_of(failure, request)
    if isinstance(refusal, Unexpected | Unavailable):
        log_failure(request, failure)
    return problem_response(request, refusal)


def log_failure(request: HttpRequest, failure: Exception) -> None:
    log.error(
        "unexpected error request_id=%s method=%s path=%s",
        request.META.get(REQUEST_ID, ""),
        request.method,
        request.path,
        exc_info=failure,
    )


def _refusal_of(failure: Exception, request: HttpRequest) -> Refusal:
    match failure:
        case Refusal():
            return failure
        case Throttled():
            allowance = allowance_of(request)
            return RateExceeded(allowance) if allowance else TooManyRequests()
        case HttpError(__cause__=Refusal() as cause):  # ninja wraps exceptions of the body's parser
            return cause
        case ValidationError(errors=errors):
            return Invalid(errors=_field_errors(errors, request))
        case AuthenticationError():
            return Unauthenticated()
        case Http404():
            return NotFound()
        case RequestDataTooBig():
            return TooLarge()
        case HttpError(status_code=400) | SuspiciousOperation() | UnreadablePostError():
            return Malformed()
        case OperationalError() | InterfaceError() | InternalError():
            return Unavailable("The database is not responding. Try again in a moment.")
        case _:
            return Unexpected()


def _field_errors(errors: Sequence[dict[str, Any]], request: HttpRequest) -> list[FieldError]:
    document = parsed_body(request)
    return merged(
        FieldError(
            pointer=_pointer(error, document),
            code=error["type"],
            message=field_message(error, _given(error, request, document)),
        )
        for error in errors
    )


def _given(error: dict[str, Any], request: HttpRequest, document: object) -> object:
    """The value that was refused, as sent; a header's is not repeated, since it may be a secret."""
    source, *loc = error["loc"]
    if source == "body":
        return value_in(document, loc[1:])
    return request.GET.get(str(loc[0]), NOT_GIVEN) if source == "query" and loc else NOT_GIVEN


def _pointer(error: dict[str, Any], document: object) -> str:
    """ninja's location is (source, parameter, …); for a body, the parameter's name is unknown to the caller."""
    source, *loc = error["loc"]
    if source == "body":
        return pointer_into(document, loc[1:], missing=error["type"] == "missing")
    return f"/{source}/{loc[0]}" if loc else f"/{source}"


_BY_STATUS: dict[int, tuple[type[Refusal], str]] = {
    404: (NotFound, "No route has this URL. GET /api/v1/docs lists all routes."),
    405: (Refusal, "Method not allowed for this URL. The Allow header lists the allowed methods."),
    413: (TooLarge, ""),
}


def refusal_for_status(status: int) -> Refusal:
    """The refusal for a response that Django made itself, outside every route."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unexpected()
    kind, detail = _BY_STATUS.get(status, (Refusal, "The request is malformed."))
    refusal = kind(detail, code="method_not_allowed" if status == HTTPStatus.METHOD_NOT_ALLOWED else "")
    if kind is Refusal:
        refusal.status = status
    return refusal
