"""Passwords that are known from breaches, looked up in a file on this machine; nothing leaves it.

The file is as Have I Been Pwned publishes its Pwned Passwords: one `SHA-1 in hex:number of times` a line, ordered by
hash (their downloader writes it; a part of it, ordered, serves as well). The file is bisected, one look for each
doubling of its size, and never loaded.

Invariants:
- without such a file this judges nothing, and Django's list of the 20,000 commonest stands alone;
- a file that is not in that form is refused when a process starts; one that cannot be read later lets no password
  through.
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
_LOOKED_AT: Final = 64  # places of the file at which its form and order are looked at


class BreachedPasswordValidator:
    def validate(self, password: str, user: Any = None) -> None:
        path = settings.ENVIRONMENT.breached_passwords_file
        if not path:
            return
        try:
            known = is_known(Path(path), password)
        except OSError:
            raise ValidationError("No password can be judged right now: try again later.", code="unjudged") from None
        if known:
            raise ValidationError("This password is known from a breach of another site.", code="password_breached")

    def get_help_text(self) -> str:
        return "It is not one that is known from a breach of another site."


def is_known(path: Path, password: str) -> bool:
    wanted = hashlib.sha1(password.encode(errors="replace"), usedforsecurity=False).hexdigest().upper().encode()
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while low < high:
            middle = (low + high) // 2
            line = _line_from(file, middle)
            if line and _hash_of(line) < wanted:
                low = middle + 1
            else:
                high = middle
        return _hash_of(_line_from(file, low)) == wanted


def refuse_faulty_file() -> None:
    path = settings.ENVIRONMENT.breached_passwords_file
    fault = fault_of(Path(path)) if path else ""
    if fault:
        raise MissingSetting(f"LAMINAR_BREACHED_PASSWORDS_FILE, {path}, {fault}")


def fault_of(path: Path) -> str:
    """What is wrong with the file; empty if nothing is."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            lines = [_line_from(file, size * n // _LOOKED_AT) for n in range(_LOOKED_AT)]
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    lines = [line for line in lines if line]
    wrong = next((line for line in lines if not _LINE.fullmatch(line)), None)
    if not lines or wrong is not None:
        return f"must have lines such as 21BD1…:3, 40 digits of SHA-1 and a number; found {(wrong or b'')[:60]!r}"
    hashes = [_hash_of(line) for line in lines]
    return "" if hashes == sorted(hashes) else "must be ordered by hash"


def _line_from(file: BinaryIO, offset: int) -> bytes:
    """The first line that begins there or later; empty behind the last."""
    file.seek(max(0, offset - 1))
    if offset:
        file.readline(200)
    return file.readline(200)


def _hash_of(line: bytes) -> bytes:
    return line[:_DIGITS].upper()
