"""What can go wrong, as one small family.

Invariants:
- whatever the server refused keeps its problem document (RFC 9457): `code`, `detail`, `errors`, `request_id`;
- no error ever carries the API key, neither in its text nor in its attributes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class LaminarError(Exception):
    """Anything that this client raises by itself."""


class BadSettings(LaminarError):
    """No address or no key, or a settings file that cannot be used."""


class Unreachable(LaminarError):
    """There was no answer, or none that comes from Laminar."""


class Unreadable(LaminarError):
    """The server answered in a form that this version of the client does not know."""


class StillGoing(LaminarError):
    """The job did not end within the time that was given."""


class Damaged(LaminarError):
    """What was downloaded is not what the server announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One place that a rule refuses. `pointer` is a JSON pointer into the request's body."""

    pointer: str
    code: str
    message: str


class MissingLibrary(LaminarError):
    """An export needs a library that is not installed; the text says which, and how."""


class ApiError(LaminarError):
    """The server refused the request."""

    def __init__(self, status: int, problem: Mapping[str, Any], *, retry_after_s: float | None = None) -> None:
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail", "")) or f"The server answered with status {status}."
        self.request_id = str(problem.get("request_id", ""))
        self.retryable = bool(problem.get("retryable", False))
        self.retry_after_s = retry_after_s
        self.errors: Sequence[FieldError] = [_field_error(found) for found in problem.get("errors") or ()]
        super().__init__(self.detail)

    def __str__(self) -> str:
        places = [f"{place.pointer}: {place.message}" for place in self.errors]
        return "\n  ".join([self.detail, *places])


class InvalidRequest(ApiError):
    """What was sent breaks a rule; `errors` names every place."""


class NotAllowed(ApiError):
    """The key is not valid, or may not do that."""


class NotFound(ApiError):
    """There is no such thing, or it is not yours."""


class Conflict(ApiError):
    """The thing's present state does not allow that."""


class LimitReached(ApiError):
    """A budget, a ceiling or a rate is used up."""


class ServerFault(ApiError):
    """The server could not answer; the request's id finds the reason in its logs."""


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
