"""Static files under names that tell their content, compressed, for a browser to keep a year.

    js/pages/job.js ──▶ js/pages/job.3f9a2b7c01.js, whose imports name hashed files too

Invariants:
- a name is made of the bytes that are served under it, addresses of other files among them: what changes anywhere below
  has another name everywhere above;
- a name that is not ours (a page of another release asks) is answered with what the file is now, to be kept by nobody;
- made in memory when first asked for: no step of a build, and none that could be forgotten.
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
    """Empty where it would not be smaller."""


def hashed_file(plain: str) -> HashedFile | None:
    """By its path below a folder of static files; None: there is none."""
    return _made(plain) if _is_there(plain) else None


def _is_there(plain: str) -> bool:
    try:
        path = finders.find(plain)
    except SuspiciousFileOperation:  # it leads out of the folder
        return False
    return isinstance(path, str) and Path(path).is_file()


@cache  # of files that are there only: nobody fills the memory with names
def _made(plain: str) -> HashedFile:
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
    found = _HASHED.fullmatch(hashed)
    return found["stem"] + found["ending"] if found else None


def _with_hashed_names(plain: str, content: bytes, ending: str) -> bytes:
    """Of what is found among the static files; other addresses stay."""

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
    """What the tag `static` asks for addresses."""

    def url(self, name: str | None) -> str:
        found = hashed_file(name or "")
        return super().url(found.name if found is not None else name)
