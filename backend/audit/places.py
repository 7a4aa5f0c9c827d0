"""Locations of the anchors and their signing key: outside the store, which Ray nodes may write."""

from pathlib import Path
from typing import Final

from django.conf import settings

ANCHORS_FILE: Final = "anchors.jsonl"


def anchors_and_key() -> tuple[Path, Path]:
    """The file of anchors and the key's file, either of which may not exist yet."""
    environment = settings.ENVIRONMENT
    return environment.audit_dir / ANCHORS_FILE, environment.audit_key_file
