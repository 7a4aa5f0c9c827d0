"""A new signing key for the anchors. What the former ones signed stays verifiable.

The file of the key holds their public halves too, below it: whoever guards the one guards the others, also where it
is a secret that containers can only read.
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
        raise ValueError(f"{key_file}: below the private key, Ed25519 public keys in PEM")
    return [key for key in keys if isinstance(key, Ed25519PublicKey)]


def rotate_key(key_file: Path, *, to: Path | None = None) -> tuple[str, str]:
    """The ids of the key that goes and of the one that comes, whole in `to`, or at once in place of the former. Whoever
    signs reads the file each time."""
    going, coming = signing_key(key_file).public_key(), Ed25519PrivateKey.generate()
    blocks = [coming.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())]
    for key in (going, *former_keys(key_file)):
        blocks.append(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    target = to or key_file
    draft = target.with_name(f"{target.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(b"".join(blocks))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)
    sync_folder(target.parent)
    return key_id(going), key_id(coming.public_key())
