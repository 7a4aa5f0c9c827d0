"""Receives the body of a part, piece by piece, and hashes it.

Invariants:
- a body that is shorter or longer than announced, or has another hash, is refused, and nothing of it is kept;
- a web process holds at most PARTS_AT_ONCE parts, at most half of them from one team; further ones get 503;
- no database connection is held while bytes arrive.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import Final

from django.db import connection
from django.http import HttpRequest

from backend.api.problems import Malformed, Unavailable
from backend.errors import FieldError, Invalid, Refusal

PARTS_AT_ONCE: Final = 8  # 128 MiB; leaves enough threads for other requests
READ_BYTES: Final = 2**20

_places = BoundedSemaphore(PARTS_AT_ONCE)
_of_teams: Final[dict[str, int]] = {}
_guard: Final = Lock()


class LengthRequired(Refusal):
    """Send the part's length in Content-Length."""

    status = 411
    code = "length_required"


@contextmanager
def received(request: HttpRequest, *, team: str, num_bytes: int, sha256: str) -> Iterator[bytes]:
    """Yields the part and holds its place meanwhile. Raises `LengthRequired`, `Invalid`, `Malformed`, `Unavailable`."""
    _refuse_other_length(request, num_bytes)
    with _hold_place(team):
        if not connection.in_atomic_block:
            connection.close()  # returned to the pool: a slow sender takes minutes
        yield _read_part(request, num_bytes, sha256)


@contextmanager
def _hold_place(team: str) -> Iterator[None]:
    with _guard:
        has_room = _of_teams.get(team, 0) < PARTS_AT_ONCE // 2 and _places.acquire(blocking=False)
        if has_room:
            _of_teams[team] = _of_teams.get(team, 0) + 1
    if not has_room:
        raise Unavailable("This server is receiving as many parts as it can. Send this part again in a moment.")
    try:
        yield
    finally:
        _places.release()
        with _guard:
            _of_teams[team] -= 1
            if not _of_teams[team]:
                del _of_teams[team]


def _refuse_other_length(request: HttpRequest, num_bytes: int) -> None:
    announced = request.headers.get("Content-Length", "")
    if not (announced.isascii() and announced.isdigit()):
        raise LengthRequired()
    if int(announced) != num_bytes:
        message = f"must be {num_bytes}, the size of this part; got {announced}"
        raise Invalid(errors=[FieldError(pointer="/header/Content-Length", code="part_length", message=message)])


def _read_part(request: HttpRequest, num_bytes: int, sha256: str) -> bytes:
    digest, content = hashlib.sha256(), bytearray()
    while len(content) < num_bytes:
        piece = request.read(min(READ_BYTES, num_bytes - len(content)))
        if not piece:
            raise Malformed(f"The body ended after {len(content)} of {num_bytes} bytes. Send the part again.")
        digest.update(piece)
        content += piece
    if digest.hexdigest() != sha256:
        message = f"must be {digest.hexdigest()}, as of the bytes received; got {sha256}. Send the part again"
        raise Invalid(errors=[FieldError(pointer="/query/sha256", code="other_content", message=message)])
    return bytes(content)
