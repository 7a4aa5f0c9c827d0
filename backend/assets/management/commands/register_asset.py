"""`manage.py register_asset data|model [PLACE] [--stored] (--team ID | --everybody) [--name NAME]`: registers files of
the shared folder, or under a prefix of the store, for a team or all teams. Without PLACE: the whole folder."""

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
    help = "Register a data set or a model of the shared folder or the store, for use in specs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("kind", choices=["data", "model"])
        parser.add_argument("place", nargs="?", help="its entry in the folder data/ or models/ of the store")
        parser.add_argument("--stored", action="store_true", help="PLACE is a prefix of the store (LAMINAR_STORE_URL)")
        parser.add_argument("--name", help="its name in specs; default: the entry's name")
        whose = parser.add_mutually_exclusive_group(required=True)
        whose.add_argument("--team", help="the team's id")
        whose.add_argument("--everybody", action="store_true")

    def handle(
        self, *args: Any, kind: str, place: str | None, stored: bool, name: str | None, team: str | None, **options: Any
    ) -> None:
        owner = Team.objects.filter(pk=team).first() if team else None
        if team and owner is None:
            raise CommandError(f"no team {team}")
        if (name is not None or stored) and place is None:
            raise CommandError("--name and --stored need PLACE")
        for each in [place] if place is not None else entries_of(kind):
            try:
                asset_name = TypeAdapter(AssetName).validate_python(name or each.rpartition("/")[2])
            except ValidationError as error:
                raise CommandError(f"use letters, digits, dot, dash, underscore; got {name or each!r}") from error
            try:
                asset, is_new = register_asset(
                    team=owner,
                    kind=kind,
                    name=asset_name,
                    place=each,
                    is_stored=stored,
                    now=database_now(),
                    on_file=self._tell,
                )
            except (OSError, StoreError, ValueError) as error:
                raise CommandError(str(error)) from error
            whose = owner.name if owner else "everybody"
            known = "registered" if is_new else "already registered"
            self.stdout.write(f"{kind} {asset.name}@{asset.version} of {whose}: {known}, {asset.num_bytes} bytes")

    def _tell(self, file: str) -> None:
        self.stderr.write(f"reading {file}")
