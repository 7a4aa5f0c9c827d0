"""Versions of a model that somebody uploaded, beside those that were trained.

They belong to an app above this one: what the registry needs of them is a port, that `backend.assets` fills.
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
