"""Where the anchors and the key that signs them lie: out of reach of the Ray nodes, which may write the store."""

from pathlib import Path
from typing import Final

from django.conf import settings

ANCHORS_FILE: Final = "anchors.jsonl"


def anchors_and_key() -> tuple[Path, Path]:
    """The file of anchors and the file of the key, which may not be there yet."""
    environment = settings.ENVIRONMENT
    return environment.audit_dir / ANCHORS_FILE, environment.audit_key_file
