"""Rejects passwords known from breaches, by a lookup in a local file; nothing leaves the machine.

The file has the format of Have I Been Pwned's Pwned Passwords: one `SHA-1 in hex:count` per line, ordered by hash
(their downloader writes it; a sorted subset works as well). Lookup is a binary search, one read per halving; the file
is never loaded.

Invariants:
- without such a file this validator accepts everything, leaving Django's list of the 20,000 commonest passwords;
- a file of another format is refused when a process starts; one that cannot be read later makes every password
  invalid.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Final

from django.conf import settings
from django.core.exceptions import ValidationError

from backend.missing import MissingSetting

_DIGITS: Final = 40
_LINE: Final = re.compile(rb"[0-9A-Fa-f]{40}:[0-9]+\r?\n?")
_LOOKED_AT: Final = 64  # offsets at which the file's format and order are checked


class BreachedPasswordValidator:
    def validate(self, password: str, user: Any = None) -> None:
        path = settings.ENVIRONMENT.breached_passwords_file
        if not path:
            return
        try:
            known = is_known(Path(path), password)
        except OSError:
            raise ValidationError("Passwords cannot be checked right now. Try again later.", code="unjudged") from None
        if known:
            raise ValidationError("This password has appeared in a data breach.", code="password_breached")

    def get_help_text(self) -> str:
        return "It must not have appeared in a data breach."


def is_known(path: Path, password: str) -> bool:
    wanted = hashlib.sha1(password.encode(errors="replace"), usedforsecurity=False).hexdigest().upper().encode()
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while low < high:
            middle = (low + high) // 2
            line = _read_line_at(file, middle)
            if line and _hash_of(line) < wanted:
                low = middle + 1
            else:
                high = middle
        return _hash_of(_read_line_at(file, low)) == wanted


def refuse_faulty_file() -> None:
    path = settings.ENVIRONMENT.breached_passwords_file
    fault = fault_of(Path(path)) if path else ""
    if fault:
        raise MissingSetting(f"LAMINAR_BREACHED_PASSWORDS_FILE, {path}, {fault}")


def fault_of(path: Path) -> str:
    """What is wrong with the file; empty if it is valid."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            lines = [_read_line_at(file, size * n // _LOOKED_AT) for n in range(_LOOKED_AT)]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    lines = [line for line in lines if line]
    wrong = next((line for line in lines if not _LINE.fullmatch(line)), None)
    if not lines or wrong is not None:
        return f"must have lines such as 21BD1…:3 (SHA-1 in 40 hex digits, a count); got {(wrong or b'')[:60]!r}"
    hashes = [_hash_of(line) for line in lines]
    return "" if hashes == sorted(hashes) else "must be ordered by hash"


def _read_line_at(file: BinaryIO, offset: int) -> bytes:
    """The first line that begins at `offset` or later; empty after the last."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline(200)
    return file.readline(200)


def _hash_of(line: bytes) -> bytes:
    return line[:_DIGITS].upper()
