"""Static files under content-hashed names, compressed and cached by browsers for a year.

    js/pages/job.js ──▶ js/pages/job.3f9a2b7c01.js, whose imports name hashed files too

Invariants:
- the hash covers the served bytes, including the hashed names of imported files: a change renames every importer too;
- an unknown hash (from a page of another release) gets the current file, marked as not cacheable;
- files are hashed and compressed in memory on the first request, so there is no build step to forget.
"""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from mimetypes import guess_type
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Final

from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.core.exceptions import SuspiciousFileOperation

LETTERS: Final = 10
_HASHED: Final = re.compile(rf"(?P<stem>.+)\.[0-9a-f]{{{LETTERS}}}(?P<ending>\.[^./]+)")
_IMPORT: Final = re.compile(rb"""((?:\bfrom|\bimport)\s*["'])(\.[^"']+\.js)(["'])""")
_URL: Final = re.compile(rb"""(\burl\(["']?)((?!data:|/|#)[^"')#?]+)(["']?\))""")
_REWRITTEN: Final = {".js": _IMPORT, ".css": _URL}
_SHRINKS: Final = frozenset({".js", ".css", ".svg", ".html", ".json", ".txt", ".map"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    name: str
    kind: str
    """For Content-Type."""
    content: bytes
    compressed: bytes
    """Empty if compression would not make the file smaller."""


def hashed_file(plain: str) -> HashedFile | None:
    """By its path below a folder of static files; None: no such file."""
    return _hash_file(plain) if _exists(plain) else None


def _exists(plain: str) -> bool:
    try:
        path = finders.find(plain)
    except SuspiciousFileOperation:  # the path leads out of the folder
        return False
    return isinstance(path, str) and Path(path).is_file()


@cache  # called for existing files only, so requests cannot fill the memory
def _hash_file(plain: str) -> HashedFile:
    path = str(finders.find(plain))
    stem, ending = plain[: -len(Path(plain).suffix) or None], Path(plain).suffix
    content = _with_hashed_names(plain, Path(path).read_bytes(), ending)
    compressed = gzip.compress(content, 9, mtime=0) if ending in _SHRINKS else b""
    return HashedFile(
        name=f"{stem}.{hashlib.sha256(content).hexdigest()[:LETTERS]}{ending}",
        kind=guess_type(plain)[0] or "application/octet-stream",
        content=content,
        compressed=compressed if len(compressed) < len(content) else b"",
    )


def plain_name(hashed: str) -> str | None:
    match = _HASHED.fullmatch(hashed)
    return match["stem"] + match["ending"] if match else None


def _with_hashed_names(plain: str, content: bytes, ending: str) -> bytes:
    """Renames imports of static files; leaves other URLs alone."""

    def renamed(found: re.Match[bytes]) -> bytes:
        other = hashed_file(normpath(join(dirname(plain), found[2].decode())))
        if other is None:
            return found[0]
        beside = f"{'./' if ending == '.js' else ''}{_from(dirname(plain), other.name)}"
        return found[1] + beside.encode() + found[3]

    return _REWRITTEN[ending].sub(renamed, content) if ending in _REWRITTEN else content


def _from(folder: str, name: str) -> str:
    ups = folder.count("/") + 1 if folder else 0
    return "../" * ups + name


class HashedStorage(StaticFilesStorage):
    """The storage behind the `static` template tag."""

    def url(self, name: str | None) -> str:
        file = hashed_file(name or "")
        return super().url(file.name if file is not None else name)
