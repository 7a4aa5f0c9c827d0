"""Uploaded versions of a model, listed next to trained ones.

They belong to an app above this one: `backend.assets` fills this port for the registry.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from backend.checkpoints.models import RegisteredModel
from backend.ports import Port


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedVersion:
    number: int
    asset: str
    """Its id."""
    sha256: str
    num_bytes: int
    created_at: datetime
    created_by: str


UploadsOf = Callable[[RegisteredModel], Sequence[UploadedVersion]]
"""Newest first."""

uploads_of: Port[UploadsOf] = Port("uploaded versions of a model")
