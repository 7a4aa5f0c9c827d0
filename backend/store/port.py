"""The store of large things: trajectories' texts, logs, checkpoints. One port, a folder or any S3-compatible server.

Invariants:
- a key is a relative path of plain names; whatever could lead out of the store is refused before it is used;
- an object is whole or it is not there: a crash in the middle of `put` leaves nothing under the key;
- `put` is durable when it returns, and putting the same again changes nothing;
- deleting what is not there is no error, so that a deletion can be done again after a crash.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_KEY = re.compile(r"[A-Za-z0-9_=,-][A-Za-z0-9_=,.-]*(/[A-Za-z0-9_=,-][A-Za-z0-9_=,.-]*)*", re.ASCII)
LONGEST_KEY = 500


class StoreError(Exception):
    """The store did not do what was asked."""

    retryable = False


class NotStored(StoreError):
    """There is nothing under this key."""


class StoreUnavailable(StoreError):
    """The store does not answer right now; the same will work again later."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    key: str
    num_bytes: int


class ObjectStore(Protocol):
    def put(self, key: str, content: bytes | Path) -> None:
        """A path: the file's content, however large."""

    def get(self, key: str) -> bytes:
        """Raises `NotStored`."""

    def get_range(self, key: str, start: int, num_bytes: int) -> bytes:
        """Fewer bytes where the object ends. Raises `NotStored`."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """By key, all that begin with the prefix. A prefix that ends with / is a folder."""

    def delete(self, key: str) -> None: ...

    def presigned_url(self, key: str, *, expires_in_s: int) -> str | None:
        """For a GET by whoever holds it; None where only our own server can serve it."""


def checked_key(key: str) -> str:
    if len(key) > LONGEST_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"not a key of the store: {key[:200]!r}")
    return key
