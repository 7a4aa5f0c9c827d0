"""The mark: a copy of the generation's row in the site folder, which a restore of the database does not touch.

Invariant: the mark is written after the commit of its row, so it is only ahead of a database that was restored.
"""

import json
import logging
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from django.conf import settings

from backend.store.folder import sync_folder

log = logging.getLogger(__name__)

MARK_FILE: Final = "generation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    site: str
    number: int
    pulse: int


def read_mark() -> Mark | None:
    """None if the file is missing or unreadable; the next write replaces it."""
    path = _path()
    try:
        fields = json.loads(path.read_bytes())
        return Mark(site=str(fields["site"]), number=int(fields["number"]), pulse=int(fields["pulse"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.error("cannot read the generation mark path=%s error=%s", path, error)
        return None


def write_mark(mark: Mark) -> None:
    """A full or read-only site folder stops no job; the next tick retries."""
    path = _path()
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(json.dumps(asdict(mark)).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        log.error("cannot write the generation mark path=%s error=%s", path, error)
        draft.unlink(missing_ok=True)


def _path() -> Path:
    return Path(settings.ENVIRONMENT.site_dir) / MARK_FILE
