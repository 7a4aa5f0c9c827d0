"""ETag and If-Match: nobody overwrites a change that they have not seen.

    GET  ──▶ ETag: "7"              a thing's version when it was read
    PATCH If-Match: "7"  ──▶ 200    nobody changed it since
    PATCH If-Match: "7"  ──▶ 412    somebody did: read it again (the answer's ETag says which version there is)

Invariants:
- a request without If-Match is allowed: who does not care writes last;
- the version is compared under the lock of the row that is about to change, so between the comparison and the write
  nothing comes in;
- tags are strong: `W/"7"` never matches, `*` matches whatever exists.
"""

import re
from typing import Annotated

from django.http import HttpResponse
from ninja import Header

from backend.errors import Refusal
from engine.spec.strict import Text

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e]*)"')

IfMatch = Annotated[
    Text | None,
    Header(
        alias="If-Match",
        max_length=1_000,
        description="The ETag of what you read: refused with 412 if it has changed since.",
    ),
]
"""The parameter of a route that changes something: `if_match: IfMatch = None`."""


class PreconditionFailed(Refusal):
    """It has changed since you read it: read it again, and send the new ETag as If-Match."""

    status = 412
    code = "changed_meanwhile"

    def __init__(self, current: str) -> None:
        super().__init__(etag=current)
        self.headers = {"ETag": current}


def etag_of(*versions: int | str) -> str:
    """The tag of a thing, made of whatever changes when it does: `etag_of(job.version)` is `"7"`."""
    tag = f'"{"-".join(str(version) for version in versions)}"'
    assert _TAG.fullmatch(tag), f"{tag} cannot be sent as an ETag"
    return tag


def refuse_if_changed(if_match: str | None, current: str) -> None:
    """Call it with the row locked. Raises `PreconditionFailed`, which a route names as `problems(412)`."""
    if if_match is None or if_match.strip() == "*":
        return
    strong = {f'"{tag}"' for weak, tag in _TAG.findall(if_match) if not weak}
    if current not in strong:
        raise PreconditionFailed(current)


def tagged(response: HttpResponse, current: str) -> None:
    """For a route's `response: HttpResponse` parameter."""
    response["ETag"] = current
