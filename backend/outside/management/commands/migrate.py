"""`manage.py migrate`: Django's, past the pooler if there is one, whose servers' time limits it sets."""

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError

from backend.outside.database import go_direct, set_time_limits
from backend.outside.trust import trouble_with_certificate


class Command(migrate.Command):
    has_pooler = False

    def run_from_argv(self, argv: list[str]) -> None:
        """As a process of its own. A program that calls the command has its connections, and keeps them."""
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
