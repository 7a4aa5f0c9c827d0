"""`manage.py register_asset data|model [PLACE] [--stored] (--team ID | --everybody) [--name NAME]`: gives what lies in
the shared folder, or under a prefix of the store, to a team or to everybody. Without PLACE: all of the folder."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import TypeAdapter, ValidationError

from backend.accounts.models import Team
from backend.assets.registering import entries_of, register_asset
from backend.assets.representations import AssetName
from backend.clock import database_now
from backend.store.port import StoreError


class Command(BaseCommand):
    help = "Registers a data set or a model of the shared folder or the store, so that specs may name it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=["data", "model"])
        parser.add_argument("place", nargs="?", help="its entry in the folder data/ or models/ of the store")
        parser.add_argument("--stored", action="store_true", help="PLACE is a prefix of the store (LAMINAR_STORE_URL)")
        parser.add_argument("--name", help="as specs will say it; the entry's own name if left out")
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--team", help="the team's id")
        whose.add_argument("--everybody", action="store_true")

    def handle(
        self, *args: Any, kind: str, place: str | None, stored: bool, name: str | None, team: str | None, **options: Any
    ) -> None:
        owner = Team.objects.filter(pk=team).first() if team else None
        if team and owner is None:
            raise CommandError(f"there is no team {team}")
        if (name is not None or stored) and place is None:
            raise CommandError("--name and --stored need PLACE beside them")
        for each in [place] if place is not None else entries_of(kind):
            try:
                said = TypeAdapter(AssetName).validate_python(name or each.rpartition("/")[2])
            except ValidationError as error:
                raise CommandError(f"name: letters, digits, dot, dash, underscore; got {name or each!r}") from error
            try:
                asset, is_new = register_asset(
                    team=owner, kind=kind, name=said, place=each, is_stored=stored, now=database_now(), told=self._tell
                )
            except (OSError, StoreError, ValueError) as error:
                raise CommandError(str(error)) from error
            whose = owner.name if owner else "everybody"
            known = "registered" if is_new else "was registered already"
            self.stdout.write(f"{kind} {asset.name}@{asset.version} of {whose}: {known}, {asset.num_bytes} bytes")

    def _tell(self, file: str) -> None:
        self.stderr.write(f"reading {file}")
