"""Signed copies of the chains' heads, kept outside the database in an append-only file.

    {"team": "team_…", "seq": 812, "hash": "…", "at": "…", "previous": "<sha256 of the line before>",
     "key": "<first 16 digits of the public key's sha256>", "signature": "<Ed25519 over all of it, base64>"}

A hash chain alone does not show that its tail was dropped or that all of it was rewritten. An attacker in the database
lacks the signing key, and dropping anchors breaks the file's own chain.

Invariants:
- an anchor is on disk (fsync) before its head counts as anchored; a duplicate anchor is harmless;
- lines are appended under a lock of the file, so concurrent processes keep one chain.
"""

import base64
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    team: str
    seq: int
    hash: str
    at: str
    previous: str
    key: str
    signature: str = ""

    def message(self) -> bytes:
        fields = {name: value for name, value in asdict(self).items() if name != "signature"}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def line(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode() + b"\n"


class BrokenAnchors(RuntimeError):
    """The file of anchors was changed."""


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The key in `path`; generated there, readable by its owner only, if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        draft.touch(mode=0o600)
        draft.write_bytes(text)
        try:
            os.link(draft, path)  # a concurrent second process uses the first one's key
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} must hold an Ed25519 private key in PEM")
    return key


def key_id(key: Ed25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def append_anchors(path: Path, heads: Iterable[tuple[str, int, str]], *, key: Ed25519PrivateKey, now: datetime) -> int:
    """Signs (team, seq, hash) of each head; returns how many were written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = key_id(key.public_key())
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        previous, lines = _hash_last_line(path), []
        for team, seq, digest in heads:
            bare = Anchor(team=team, seq=seq, hash=digest, at=now.isoformat(), previous=previous, key=name)
            signature = base64.b64encode(key.sign(bare.message())).decode()
            lines.append(Anchor(**(asdict(bare) | {"signature": signature})).line())
            previous = hashlib.sha256(lines[-1]).hexdigest()
        file.write(b"".join(lines))
        file.flush()
        os.fsync(file.fileno())
    return len(lines)


def read_anchors(
    path: Path, *, key: Ed25519PublicKey, former: Iterable[Ed25519PublicKey] = (), of: str | None = None
) -> Iterator[Anchor]:
    """Raises `BrokenAnchors` at the first changed line. `former`: earlier signing keys. `of`: only this team's anchors,
    without checking other signatures, which is most of the cost."""
    if not path.exists():
        return
    keys = {key_id(each): each for each in (key, *former)}
    previous = hashlib.sha256(b"").hexdigest()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            anchor = _check_line(line, number, previous, keys, of)
            if of is None or anchor.team == of:
                yield anchor
            previous = hashlib.sha256(line).hexdigest()


def _check_line(
    line: bytes, number: int, previous: str, keys: Mapping[str, Ed25519PublicKey], of: str | None
) -> Anchor:
    try:
        anchor = Anchor(**json.loads(line))
        if anchor.key not in keys:
            raise BrokenAnchors(f"line {number} of the anchors is signed with the unknown key {anchor.key}")
        if of is None or anchor.team == of:
            keys[anchor.key].verify(base64.b64decode(anchor.signature), anchor.message())
    except (ValueError, TypeError) as error:
        raise BrokenAnchors(f"line {number} of the anchors is malformed: {error}") from error
    except InvalidSignature as error:
        raise BrokenAnchors(f"line {number} of the anchors has an invalid signature (key {anchor.key})") from error
    if anchor.previous != previous:
        raise BrokenAnchors(f"lines of the anchors were removed or moved before line {number}")
    return anchor


def _hash_last_line(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 4_096))  # a line is some 400 bytes
        lines = file.read().splitlines(keepends=True)
    return hashlib.sha256(lines[-1] if lines else b"").hexdigest()
