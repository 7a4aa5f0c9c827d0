"""`manage.py ensure_demo --password-file P --api-key-file K`: creates or repairs the demo tenant; prints one JSON line.

Invariants:
- a password or key in its file is used as it is; a missing one is generated and written there;
- a secret's file is readable by its owner only, and is written atomically.
"""

import contextlib
import json
import os
import secrets
import tempfile
from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from backend.pools.demo import ensure_demo

_MIN_PASSWORD = 10  # as in settings.AUTH_PASSWORD_VALIDATORS


class Command(BaseCommand):
    help = "Create or repair the demo user, team, project, pool, quota and API key."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--password-file", type=Path, required=True)
        parser.add_argument("--api-key-file", type=Path, required=True)

    def handle(self, *args: Any, password_file: Path, api_key_file: Path, **options: Any) -> None:
        password = _read(password_file)
        if password is None:
            password = secrets.token_urlsafe(12)
            _write_secret(password_file, password)
        elif len(password) < _MIN_PASSWORD:
            raise CommandError(f"the password in {password_file} is shorter than {_MIN_PASSWORD} characters")
        wanted = _read(api_key_file)
        demo = ensure_demo(password=password, wanted_api_key=wanted, now=datetime.now(UTC))
        if demo.api_key != wanted:
            _write_secret(api_key_file, demo.api_key)
        shown = {"team": demo.team.pk, "project": demo.project.pk, "user": demo.user.email, "pool": demo.pool.name}
        self.stdout.write(json.dumps(shown))


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {file}: {error}") from error


def _write_secret(file: Path, text: str) -> None:
    """mkstemp creates the file with mode 600; the rename is atomic."""
    try:
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error}") from error
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise CommandError(f"cannot write {file}: {error}") from error
