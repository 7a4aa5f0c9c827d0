"""The store of large objects: texts of trajectories, logs, checkpoints. One port, for a folder or any S3 server.

Invariants:
- a key is a relative path of plain names; a key that could lead out of the store is refused before use;
- an object is complete or missing: a crash in the middle of `put` leaves nothing under the key;
- `put` is durable when it returns, and idempotent;
- deleting a missing object is no error, so a deletion can be repeated after a crash.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_KEY = re.compile(r"[A-Za-z0-9_=,-][A-Za-z0-9_=,.-]*(/[A-Za-z0-9_=,-][A-Za-z0-9_=,.-]*)*", re.ASCII)
LONGEST_KEY = 500


class StoreError(Exception):
    """The store failed the request."""

    retryable = False


class NotStored(StoreError):
    """There is no object under this key."""


class StoreUnavailable(StoreError):
    """The store is not responding. A retry may succeed."""

    retryable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    key: str
    num_bytes: int


class ObjectStore(Protocol):
    def put(self, key: str, content: bytes | Path) -> None:
        """A path: uploads the file's content, of any size."""

    def get(self, key: str) -> bytes:
        """Raises `NotStored`."""

    def get_range(self, key: str, start: int, num_bytes: int) -> bytes:
        """Fewer bytes at the end of the object. Raises `NotStored`."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects with the prefix, sorted by key. A prefix that ends with / is a folder."""

    def delete(self, key: str) -> None: ...

    def presigned_url(self, key: str, *, expires_in_s: int) -> str | None:
        """A URL for a GET by any bearer; None if only this site's server can serve the object."""


def checked_key(key: str) -> str:
    if len(key) > LONGEST_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"not a key of the store: {key[:200]!r}")
    return key
