"""The version of the code that writes a checkpoint: a hash over the sources of this process."""

import hashlib
from functools import cache
from pathlib import Path

_ENGINE = Path(__file__).resolve().parents[2]


@cache
def code_version() -> str:
    """sha256 over the path and content of every Python file of the engine."""
    digest = hashlib.sha256()
    for path in sorted(_ENGINE.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_ENGINE).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return f"engine-{digest.hexdigest()[:32]}"
