"""The manifest of a checkpoint: the names, sizes and hashes of its parts.

The engine reads it before it resumes from a checkpoint, the control plane before it reports a checkpoint as complete.
In a folder a part is stored under its name; in an object store under `parts/<sha256>` next to its manifest.
"""

from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from engine.spec.strict import Strict, Text

MANIFEST_FILE: Final = "manifest.json"
PROGRESS_FOLDER: Final = "progress"
"""The data part's progress, stored next to the weights with its own manifest."""
STORED_PARTS: Final = "parts"

# A plain name, at most one folder deep: a manifest can never lead outside its own folder.
PartName = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_-]{0,60}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,200}$")]


def readable_address(uri: str) -> str:
    """Validates that an address names a folder or an object key. Raises `ValueError`."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    is_folder = parts.scheme == "file" and not parts.netloc
    is_key = parts.scheme == "s3" and bool(parts.netloc)
    if not (is_folder or is_key) or not path.startswith("/") or len(path) < 2 or not path.isprintable():
        raise ValueError("must be a folder's address, file:///…, or an object key, s3://bucket/…")
    return uri


CheckpointAddress = Annotated[Text, Field(max_length=2_000), AfterValidator(readable_address)]


class CheckpointPart(Strict):
    num_bytes: int = Field(ge=0)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class CheckpointManifest(Strict):
    format: Literal["laminar-checkpoint-1"] = "laminar-checkpoint-1"
    parts: dict[PartName, CheckpointPart]
