"""`manage.py raise_generation`: declares that this site's database was restored. Usually the site detects it itself."""

from django.core.management.base import BaseCommand, CommandParser

from backend.jobs.generation.raising import raise_generation


class Command(BaseCommand):
    help = "Declare that the database was restored, so that messages of the lost time are not mistaken for new ones."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--reason", default="requested by an operator", help="stored with the generation")

    def handle(self, *args: object, **options: str) -> None:
        raised = raise_generation(options["reason"])
        self.stdout.write(
            f"Generation {raised.number}: fences of new attempts start here. Facts and attempts left from the lost "
            "time are read or adopted, and drivers without an attempt are stopped."
        )
