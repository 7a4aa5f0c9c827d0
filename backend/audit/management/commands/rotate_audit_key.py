"""`manage.py rotate_audit_key`: replaces the key that signs the audit log's anchors."""

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser

from backend.audit.key_rotation import rotate_key
from backend.audit.places import anchors_and_key


class Command(BaseCommand):
    help = "Generate a new key for the audit log's anchors. Earlier anchors stay verifiable."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--to", type=Path, help="write the new key file here instead of replacing the old one")

    def handle(self, *args: object, **options: Path | None) -> None:
        _, key_file = anchors_and_key()
        to = options["to"]
        try:
            old, new = rotate_key(key_file, to=to)
        except OSError as error:
            raise CommandError(
                f"{error.strerror}: {error.filename}; use --to FILE to write the new key elsewhere"
            ) from error
        when = "from now on" if to is None else f"once {to} is in place of {key_file}"
        self.stdout.write(
            f"{new} signs {when}; signatures of {old} stay verifiable by its public half in the same file"
        )
