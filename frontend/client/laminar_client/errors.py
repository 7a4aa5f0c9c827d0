"""The client's errors.

Invariants:
- a refusal by the server keeps its problem document (RFC 9457): `code`, `detail`, `errors`, `request_id`;
- no error ever carries the API key, neither in its text nor in its attributes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class LaminarError(Exception):
    """Base class of this client's errors."""


class BadSettings(LaminarError):
    """The URL or key is missing, or the settings file cannot be used."""


class Unreachable(LaminarError):
    """The server did not respond, or is not a Laminar server."""


class Unreadable(LaminarError):
    """This version of the client cannot read the server's response."""


class NotFinished(LaminarError):
    """The job did not end within the timeout."""


class Damaged(LaminarError):
    """The download differs from what the server announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """An invalid field. `pointer` is a JSON pointer into the request's body."""

    pointer: str
    code: str
    message: str


class MissingLibrary(LaminarError):
    """An export needs a library that is not installed; the message has the command to install it."""


class ApiError(LaminarError):
    """The server refused the request."""

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", "")) or f"The server responded with status {status}."
        self.request_id = str(problem.get("request_id", ""))
        self.retryable = bool(problem.get("retryable", False))
        self.retry_after_s = retry_after_s
        self.errors: Sequence[FieldError] = [_field_error(found) for found in problem.get("errors") or ()]
        super().__init__(self.detail)

    def __str__(self) -> str:
        places = [f"{place.pointer}: {place.message}" for place in self.errors]
        return "\n  ".join([self.detail, *places])


class InvalidRequest(ApiError):
    """The request is not valid; `errors` lists every invalid field."""


class NotAllowed(ApiError):
    """The key is not valid, or lacks permission."""


class NotFound(ApiError):
    """The resource does not exist, or belongs to another team."""


class Conflict(ApiError):
    """The resource's current state does not allow the request."""


class LimitReached(ApiError):
    """A budget, key limit or rate limit is exceeded."""


class ServerFault(ApiError):
    """The server failed; its logs have the reason under the request id."""


_OF_STATUS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 402: LimitReached, 429: LimitReached}
_CONFLICTS = frozenset({409, 410, 412, 425, 428})
_LIMIT_CODES = frozenset({"key_ceiling", "budget", "quota_exceeds_pool"})


def error_of(status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None) -> ApiError:
    kind: type[ApiError] = InvalidRequest
    if status >= 500:
        kind = ServerFault
    elif problem.get("code") in _LIMIT_CODES:
        kind = LimitReached
    elif status in _CONFLICTS:
        kind = Conflict
    return _OF_STATUS.get(status, kind)(status, problem, retry_after_s=retry_after_s)


def _field_error(found: object) -> FieldError:
    known = found if isinstance(found, Mapping) else {}
    return FieldError(**{name: str(known.get(name, "")) for name in ("pointer", "code", "message")})
