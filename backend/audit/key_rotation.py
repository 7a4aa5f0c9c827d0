"""Rotation of the anchors' signing key. Signatures of former keys stay verifiable.

The key's file also holds the public halves of former keys, below it, so one protection covers all, even for a read-only
secret of containers.
"""

import os
import re
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from backend.audit.anchors import key_id, signing_key
from backend.store.folder import sync_folder

_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\n?", re.DOTALL)


def former_keys(key_file: Path) -> list[Ed25519PublicKey]:
    """Raises `ValueError`."""
    keys = [load_pem_public_key(pem) for pem in _PEM.findall(key_file.read_bytes())]
    if not all(isinstance(key, Ed25519PublicKey) for key in keys):
        raise ValueError(f"{key_file} must hold only Ed25519 public keys (PEM) below the private key")
    return [key for key in keys if isinstance(key, Ed25519PublicKey)]


def rotate_key(key_file: Path, *, to: Path | None = None) -> tuple[str, str]:
    """Returns the ids of the old and the new key. Writes the new file to `to`, or replaces the old one at once. Signers
    read the file each time."""
    old, new = signing_key(key_file).public_key(), Ed25519PrivateKey.generate()
    blocks = [new.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    for key in (old, *former_keys(key_file)):
        blocks.append(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    target = to or key_file
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(b"".join(blocks))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
    sync_folder(target.parent)
    return key_id(old), key_id(new.public_key())
