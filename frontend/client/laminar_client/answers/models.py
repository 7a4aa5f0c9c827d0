"""Registered models and their versions."""

from datetime import datetime
from typing import Any

from .record import Answer, Named, record


@record
class ModelVersion(Answer):
    model: str
    number: int
    checkpoint: str
    note: str
    created_at: datetime
    created_by: str
    lineage: dict[str, Any]


@record
class Model(Named):
    created_at: datetime


@record
class ModelWithVersions(Model):
    versions: list[ModelVersion]
