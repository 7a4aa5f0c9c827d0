"""Laminar's Python client: post-train language models by reinforcement learning on a Laminar server."""

from .client import AsyncLaminar, Laminar
from .errors import (
    ApiError,
    BadSettings,
    Conflict,
    Damaged,
    InvalidRequest,
    LaminarError,
    LimitReached,
    MissingLibrary,
    NotAllowed,
    NotFinished,
    NotFound,
    ServerFault,
    Unreachable,
    Unreadable,
)
from .retrying import Patience

__all__ = [
    "ApiError",
    "AsyncLaminar",
    "BadSettings",
    "Conflict",
    "Damaged",
    "InvalidRequest",
    "Laminar",
    "LaminarError",
    "LimitReached",
    "MissingLibrary",
    "NotAllowed",
    "NotFinished",
    "NotFound",
    "Patience",
    "ServerFault",
    "Unreachable",
    "Unreadable",
]
