"""The manifest of a checkpoint: the names, sizes and hashes of its parts.

Both planes read it: the engine before it goes on from a checkpoint, the control plane before it says that one is
whole. In a folder a part lies under its name; in an object store under `parts/<sha256>`, its manifest beside it.
"""

from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from engine.spec.strict import Strict, Text

MANIFEST_FILE: Final = "manifest.json"
PROGRESS_FOLDER: Final = "progress"
"""Beside the weights: how far the data had come, with a manifest of its own."""
STORED_PARTS: Final = "parts"

# A plain name, in one folder at most: a manifest can never lead outside of its own.
PartName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_-]{0,60}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,200}$")]


def readable_address(uri: str) -> str:
    """An address that names a folder or a key, wherever that is. Raises `ValueError` for one that nothing can read."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    is_folder = parts.scheme == "file" and not parts.netloc
    is_key = parts.scheme == "s3" and bool(parts.netloc)
    if not (is_folder or is_key) or not path.startswith("/") or len(path) < 2 or not path.isprintable():
        raise ValueError("must be the address of a folder, file:///…, or of a key in a bucket, s3://bucket/…")
    return uri


CheckpointAddress = Annotated[Text, Field(max_length=2_000), AfterValidator(readable_address)]


class CheckpointPart(Strict):
    num_bytes: int = Field(ge=0)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class CheckpointManifest(Strict):
    format: Literal["laminar-checkpoint-1"] = "laminar-checkpoint-1"
    parts: dict[PartName, CheckpointPart]
