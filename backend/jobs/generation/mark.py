"""The mark: a copy of the generation's row in the site folder, which no restore of the database puts back.

Invariant: it is written after the commit of what it tells, so it is never ahead of a database that was not put back.
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
    """None: there is none yet, or none that can be understood, and the next one is written over it."""
    path = _path()
    try:
        told = json.loads(path.read_bytes())
        return Mark(site=str(told["site"]), number=int(told["number"]), pulse=int(told["pulse"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.error("the mark of the generation cannot be read path=%s error=%s", path, error)
        return None


def write_mark(mark: Mark) -> None:
    """A site folder that is full or read-only stops no job; the next tick tries again."""
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
        log.error("the mark of the generation cannot be written path=%s error=%s", path, error)
        draft.unlink(missing_ok=True)


def _path() -> Path:
    return Path(settings.ENVIRONMENT.site_dir) / MARK_FILE
