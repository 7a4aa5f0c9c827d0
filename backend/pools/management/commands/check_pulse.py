"""`manage.py check_pulse beat`: exit code 1 if nothing has been heard of it for long. A container's health check."""

from django.core.management.base import BaseCommand, CommandError, CommandParser

from backend.pulses import LATE_AFTER_S, PULSES, ages


class Command(BaseCommand):
    help = "Check that the work behind the pages goes on."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("part", choices=sorted(PULSES))

    def handle(self, *args: object, **options: object) -> None:
        age = ages().get(str(options["part"]))
        if age is None or age > LATE_AFTER_S:
            heard = "never" if age is None else f"{age:.0f} s ago"
            raise CommandError(f"{options['part']} was heard of {heard}; a healthy one is within {LATE_AFTER_S:.0f} s")
