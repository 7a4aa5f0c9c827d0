"""`manage.py rotate_audit_key`: sign the audit log's anchors with a new key from now on."""

from pathlib import Path

from django.core.management.base import BaseCommand, CommandError, CommandParser

from backend.audit.key_rotation import rotate_key
from backend.audit.places import anchors_and_key


class Command(BaseCommand):
    help = "Make a new key for the audit log's anchors. Anchors of before stay verifiable."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--to", type=Path, help="write it here, for you to put in place of the former")

    def handle(self, *args: object, **options: Path | None) -> None:
        _, key_file = anchors_and_key()
        to = options["to"]
        try:
            going, coming = rotate_key(key_file, to=to)
        except OSError as error:
            raise CommandError(f"{error.strerror}: {error.filename}; --to FILE writes the new one elsewhere") from error
        when = "from now on" if to is None else f"once {to} is in place of {key_file}"
        self.stdout.write(
            f"{coming} signs {when}; what {going} signed is verified by its public half, in the same file"
        )
