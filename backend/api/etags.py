"""ETag and If-Match: no caller overwrites a change that they have not seen.

    GET  ──▶ ETag: "7"              the resource's version when it was read
    PATCH If-Match: "7"  ──▶ 200    unchanged since
    PATCH If-Match: "7"  ──▶ 412    changed since: read it again (the response's ETag is the current version)

Invariants:
- a request without If-Match is allowed: the last write wins;
- the version is compared under the lock of the row to be changed, so no other write comes between comparison and
  write;
- tags are strong: `W/"7"` never matches, `*` matches every existing resource.
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
        description="ETag of the version you read. The request fails with 412 if the resource has changed since.",
    ),
]
"""The parameter of a route that changes a resource: `if_match: IfMatch = None`."""


class PreconditionFailed(Refusal):
    """This has changed since you read it. Read it again and send the new ETag as If-Match."""

    status = 412
    code = "changed_meanwhile"

    def __init__(self, current: str) -> None:
        super().__init__(etag=current)
        self.headers = {"ETag": current}


def etag_of(*versions: int | str) -> str:
    """A resource's tag, made of its versions: `etag_of(job.version)` is `"7"`."""
    tag = f'"{"-".join(str(version) for version in versions)}"'
    assert _TAG.fullmatch(tag), f"{tag} cannot be sent as an ETag"
    return tag


def refuse_if_changed(if_match: str | None, current: str) -> None:
    """Call it with the row locked. Raises `PreconditionFailed`, which a route declares as `problems(412)`."""
    if if_match is None or if_match.strip() == "*":
        return
    strong = {f'"{tag}"' for weak, tag in _TAG.findall(if_match) if not weak}
    if current not in strong:
        raise PreconditionFailed(current)


def tagged(response: HttpResponse, current: str) -> None:
    """For a route's `response: HttpResponse` parameter."""
    response["ETag"] = current
