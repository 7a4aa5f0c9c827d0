"""Problems for whatever was raised.

Invariants:
- nothing of the inside (a traceback, an SQL text) leaves the process; what was not foreseen is logged with the
  request's id and answered 500;
- a database that does not answer, or takes no writes, is 503 with Retry-After: the caller may simply try again;
- all validation errors of a request are told at once, each with a pointer: into the body (/spec/training/steps),
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
from backend.api.problems import (
    Malformed,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    Unexpected,
    problem_response,
)
from backend.api.rate_limit import RateExceeded, allowance_of
from backend.api.request_context import REQUEST_ID
from backend.errors import FieldError, Invalid, NotFound, Refusal, merged, plain_message, pointer_into

log = logging.getLogger(__name__)

DATABASE_IS_AWAY = (OperationalError, InterfaceError, InternalError)  # the last: it is read-only


def answer_with_problems(api: NinjaAPI) -> None:
    """Every exception that a route of `api` may raise becomes a problem."""
    for kind in (ValidationError, HttpError, Http404, Exception):  # the first three replace ninja's own handlers
        api.add_exception_handler(kind, _answer)


def _answer(request: HttpRequest, failure: Exception | type[Exception]) -> HttpResponse:
    assert isinstance(failure, Exception), "ninja's type also allows a class; nothing raises one"
    refusal = _refusal_of(failure, request)
    if isinstance(refusal, Unexpected | Unavailable):
        log.error(
            "unexpected error request_id=%s method=%s path=%s",
            request.META.get(REQUEST_ID, ""),
            request.method,
            request.path,
            exc_info=failure,
        )
    return problem_response(request, refusal)


def _refusal_of(failure: Exception, request: HttpRequest) -> Refusal:
    match failure:
        case Refusal():
            return failure
        case Throttled():
            allowance = allowance_of(request)
            return RateExceeded(allowance) if allowance else TooManyRequests()
        case HttpError(__cause__=Refusal() as cause):  # ninja wraps whatever the body's parser raises
            return cause
        case ValidationError(errors=errors):
            return Invalid(errors=_field_errors(errors, parsed_body(request)))
        case AuthenticationError():
            return Unauthenticated()
        case Http404():
            return NotFound()
        case RequestDataTooBig():
            return TooLarge()
        case HttpError(status_code=400) | SuspiciousOperation() | UnreadablePostError():
            return Malformed()
        case OperationalError() | InterfaceError() | InternalError():
            return Unavailable("The database does not answer right now; try again in a moment.")
        case _:
            return Unexpected()


def _field_errors(errors: Sequence[dict[str, Any]], document: object) -> list[FieldError]:
    return merged(
        FieldError(pointer=_pointer(error, document), code=error["type"], message=plain_message(error["msg"]))
        for error in errors
    )


def _pointer(error: dict[str, Any], document: object) -> str:
    """ninja's location is (source, parameter, …); of a body the parameter's name is ours and not the caller's."""
    source, *loc = error["loc"]
    if source == "body":
        return pointer_into(document, loc[1:], missing=error["type"] == "missing")
    return f"/{source}/{loc[0]}" if loc else f"/{source}"


_BY_STATUS: dict[int, tuple[type[Refusal], str]] = {
    404: (NotFound, "There is no such address in this API."),
    405: (Refusal, "This address does not know that method; the Allow header lists those it knows."),
    413: (TooLarge, ""),
}


def refusal_for_status(status: int) -> Refusal:
    """An answer of Django's own, outside every route, in our words."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unexpected()
    kind, detail = _BY_STATUS.get(status, (Refusal, "The request could not be understood."))
    refusal = kind(detail, code="method_not_allowed" if status == HTTPStatus.METHOD_NOT_ALLOWED else "")
    if kind is Refusal:
        refusal.status = status
    return refusal
