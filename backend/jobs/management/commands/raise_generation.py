"""`manage.py raise_generation`: tell this site that its database was put back in time. It mostly notices by itself."""

from django.core.management.base import BaseCommand, CommandParser

from backend.jobs.generation.raising import raise_generation


class Command(BaseCommand):
    help = "Say that the database was put back in time, so that nothing of the lost time is taken for what comes now."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", default="an operator said so", help="kept with the generation")

    def handle(self, *args: object, **options: str) -> None:
        raised = raise_generation(options["reason"])
        self.stdout.write(
            f"generation {raised.number}: attempts that begin from now on have fences of at least that; what attempts "
            "of the lost time have left is read or taken up, and drivers that belong to nobody are stopped"
        )
