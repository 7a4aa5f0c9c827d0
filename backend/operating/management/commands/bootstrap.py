"""`manage.py bootstrap`: creates what a site needs before its first job; prints a single-use link.

    bootstrap                                          prompts, on a terminal
    bootstrap --email ada@example.org                  uses the default names, and the capacity that Ray reports
    bootstrap --email ada@example.org --capacity 8 --json

Invariants:
- the link is printed and not stored; no password is typed, read or shown;
- a repeated run changes nothing; conflicting wishes are refused, with where to change the object.
"""

import json
import sys
from argparse import ArgumentParser
from typing import Annotated, Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from pydantic import Field, TypeAdapter, ValidationError

from backend.accounts.people.invitations import EMAIL
from backend.borders.types import OneLine
from backend.clock import database_now
from backend.errors import Refusal
from backend.operating.beginning import Begun, Devices, Wish, awaits_a_password, begin, pool_called, previous_wish
from backend.operating.ray_cluster import dashboard_of, devices_of
from backend.pools.clusters.addresses import RayAddress
from backend.pools.clusters.dashboard import LauncherError

_NAME: Final = TypeAdapter(Annotated[OneLine, Field(min_length=1, max_length=80)])
_PROMPTS: Final = {"email": "Your email address", "team": "Team", "project": "Project", "pool": "Pool of devices"}
_MOST_DEVICES: Final = 2**31 - 1  # the column's maximum


class Command(BaseCommand):
    help = "Create what a site needs before its first job: operator, team, project, pool, quota."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--email", help="address of the operator: you")
        parser.add_argument("--team", help="name of your team (Operators)")
        parser.add_argument("--project", help="name of its first project (First steps)")
        parser.add_argument("--pool", help="name of the pool of devices (main)")
        parser.add_argument("--capacity", type=int, help="devices of the pool (as many as Ray reports)")
        parser.add_argument("--flavor", help="kind of these devices (what Ray calls them)")
        parser.add_argument("--quota", type=int, help="devices promised to the team (all that are left)")
        parser.add_argument("--json", action="store_true", help="print the objects and the link as JSON")

    def handle(self, *args: Any, capacity: int | None, quota: int | None, flavor: str | None, **options: Any) -> None:
        for name, number in (("--capacity", capacity), ("--quota", quota)):
            if number is not None and not 1 <= number <= _MOST_DEVICES:
                raise CommandError(f"{name} must be a number of devices from 1 to {_MOST_DEVICES}, got {number}")
        wish = _read_wish(options, capacity=capacity, quota=quota)
        devices = None if pool_called(wish.pool) else _choose_devices(capacity, flavor)
        try:
            begun = begin(wish, devices, now=database_now())
        except Refusal as refusal:
            raise CommandError(f"nothing was changed: {' '.join(refusal.sentences)}") from refusal
        self.stdout.write(json.dumps(_document(begun)) if options["json"] else _describe(begun))


def _read_wish(options: dict[str, Any], *, capacity: int | None, quota: int | None) -> Wish:
    before = previous_wish()
    given = {name: options[name] for name in _PROMPTS if options[name] is not None}
    if "email" not in given and before is None:
        if not sys.stdin.isatty():
            raise CommandError("--email is required: the operator's address, such as --email ada@example.org")
        given |= {name: _prompt_for(name) for name in _PROMPTS if name not in given}
    usual = {name: getattr(before, name) for name in _PROMPTS} if before and _is_same(before, given) else {}
    names = usual | given
    for name, text in names.items():
        try:
            names[name] = _NAME.validate_python(text.strip())
        except ValidationError as error:
            raise CommandError(f"--{name} must be one line of 1 to 80 characters, got {text!r}") from error
    if not EMAIL.fullmatch(names["email"]) or len(names["email"]) > 254:
        raise CommandError(f"--email must be an address such as ada@example.org, got {names['email']!r}")
    return Wish(capacity=capacity, quota=quota, **(names | {"email": names["email"].lower()}))


def _is_same(before: Wish, given: dict[str, str]) -> bool:
    """Another operator starts with their own names."""
    return given.get("email", before.email).lower() == before.email


def _prompt_for(name: str) -> str:
    usual = "" if name == "email" else str(Wish.__dataclass_fields__[name].default)
    answer = input(f"{_PROMPTS[name]}{f' [{usual}]' if usual else ''}: ").strip()
    return answer or usual


def _choose_devices(capacity: int | None, flavor: str | None) -> Devices:
    """The devices of a new pool."""
    if capacity is not None and flavor is not None:
        return Devices(capacity=capacity, flavor=flavor)
    try:
        num, kind = devices_of(dashboard_of(RayAddress(), settings.ENVIRONMENT).hosts())
    except LauncherError as error:
        if capacity is not None:
            return Devices(capacity=capacity, flavor=flavor or "cpu")
        raise CommandError(
            f"Ray did not report its devices ({error}). Check LAMINAR_RAY_URL and its token, "
            "or give the number: --capacity 8"
        ) from error
    if not num and capacity is None:
        raise CommandError("Ray has no devices yet. Let its workers join first, or give the number: --capacity 8")
    return Devices(capacity=capacity or num, flavor=flavor or kind)


def _document(begun: Begun) -> dict[str, object]:
    return {
        "operator": begun.user.email,
        "team": begun.team.pk,
        "project": begun.project.pk,
        "pool": begun.pool.pk,
        "capacity": begun.pool.capacity,
        "quota": begun.quota.nominal,
        "made": list(begun.made),
        "link": begun.link,
    }


def _describe(begun: Begun) -> str:
    site = settings.ENVIRONMENT.public_url
    if not begun.made:
        lines = [
            f"Nothing to do: the operator of this site is {begun.user.email}, with team {begun.team.name}, project "
            f"{begun.project.name}, pool {begun.pool.name} ({begun.pool.capacity} devices) and a quota of "
            f"{begun.quota.nominal}.",
        ]
    else:
        lines = ["Created:", *(f"  {sentence}" for sentence in begun.made)]
    if begun.link:
        lines += [
            "",
            "Set your password here. The link works once, within 24 hours, for anyone who has it:",
            f"  {begun.link}",
        ]
    elif awaits_a_password(begun.user):
        lines += ["", f"No password is set yet. A new link: python manage.py account reset {begun.user.email}"]
    steps = {
        "python manage.py doctor": "checks this site, and suggests fixes",
        f"{site}/accounts/2fa/": "sets up your second factor",
        f"{site}/jobs/new": "submits the first job",
        f"{site}/members/": "invites others",
    }
    width = max(len(step) for step in steps)
    lines += ["", "Next:", *(f"  {step:{width}}  {does}" for step, does in steps.items())]
    return "\n".join(lines)
