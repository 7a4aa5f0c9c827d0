"""`manage.py migrate`: Django's, past the pooler if there is one, and it sets the role's time limits."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError

from backend.outside.database import go_direct, set_time_limits
from backend.outside.trust import trouble_with_certificate


class Command(migrate.Command):
    has_pooler = False

    def run_from_argv(self, argv: list[str]) -> None:
        """When run as a process. A program that calls the command keeps its own connections."""
        self.has_pooler = go_direct()
        super().run_from_argv(argv)

    def handle(self, *arguments: Any, **options: Any) -> None:
        try:
            super().handle(*arguments, **options)
            if self.has_pooler:
                set_time_limits()
        except OperationalError as error:
            setting = "LAMINAR_DATABASE_DIRECT_URL" if self.has_pooler else "LAMINAR_DATABASE_URL"
            trouble = trouble_with_certificate(error, setting)
            if trouble:
                raise CommandError(trouble) from error
            raise
