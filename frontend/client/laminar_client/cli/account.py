"""laminar login, logout, whoami, keys, projects.

Invariant: a key is read without echo or from standard input, and printed only once, on creation.
"""

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click
from rich.text import Text

from ..client import Laminar
from ..profiles import (
    DEFAULT,
    Login,
    checked_key,
    checked_url,
    config_file,
    forget_profile,
    is_open_to_all,
    store_profile,
)
from .commands import Group, laminar, with_session
from .rendering import ago, facts, plain, table, when
from .session import Session, wrong_use

_LONG = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
LONGEST_KEY = 1_000


@laminar.command("login")
@click.option("--url", help="The server's URL (default: prompt).")
@click.option("--key-stdin", is_flag=True, help="Read the key from standard input instead of prompting.")
@with_session
def login(session: Session, url: str | None, key_stdin: bool) -> None:
    """Check and store a server and a key. Use --profile to store several."""
    address = checked_url(url or click.prompt("Address", type=str, err=True))
    text = sys.stdin.read(LONGEST_KEY) if key_stdin else click.prompt("API key", hide_input=True, type=str, err=True)
    key = checked_key(text)
    if is_open_to_all(address):
        session.note("This URL does not use https: others on the network can read the key.")
    with Laminar(address, key) as client:
        me = client.team.me()
    name = session.profile or DEFAULT
    store_profile(config_file(), name, Login(url=address, key=key))
    session.document(me)
    session.show(f"Logged in as {plain(me.user)}, team {plain(me.team.name)} (profile {name}).")


@laminar.command("logout")
@with_session
def logout(session: Session) -> None:
    """Delete a stored login. The key stays valid; to revoke it, use `laminar keys revoke`."""
    name = session.profile or DEFAULT
    if not forget_profile(config_file(), name):
        wrong_use(f"Login {name} does not exist.")
    session.document({"forgotten": name})
    session.show(f"Deleted login {name}.")


@laminar.command("whoami")
@with_session
def whoami(session: Session) -> None:
    """Show the server, the team, and the permissions of the key."""
    me = session.client.team.me()
    session.document({**me.raw, "url": session.client.url})
    session.show(
        facts(
            {
                "server": session.client.url,
                "user": me.user,
                "team": f"{me.team.name} ({me.team.id})",
                "role": me.role,
                "key": f"{me.key.name} ({me.key.prefix}…)",
                "expires": when(me.key.expires_at) if me.key.expires_at else "never",
                "scopes": ", ".join(me.scopes),
            }
        )
    )


@laminar.command("projects")
@with_session
def projects(session: Session) -> None:
    """List the team's projects."""
    found = session.client.team.projects()
    session.document(found)
    session.show(table("id", "name", "made", rows=[(each.id, each.name, ago(each.created_at)) for each in found]))


@laminar.group("keys", cls=Group, invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """List API keys; see also `keys create` and `keys revoke`."""
    if context.invoked_subcommand is not None:
        return
    session: Session = context.find_root().obj
    found = list(session.client.team.keys())
    session.document(found)
    rows = [
        (each.id, each.name, each.state, each.owner.name, when(each.expires_at), ago(each.last_used_at))
        for each in found
    ]
    session.show(table("id", "name", "state", "owner", "expires", "last used", rows=rows))


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, help="Can be repeated (default: the usual scopes of your role).")
@click.option("--expires-in", metavar="30d", help="Such as 12h, 30d or 8w (default: never).")
@click.option("--project", help="Limit the key to the project with this id.")
@click.option("--service-account", metavar="ID", help="Create the key for this service account.")
@click.option("--max-devices", type=click.IntRange(1), help="Limit the devices that its jobs hold or wait for at once.")
@click.option("--max-gpu-hours", type=click.FloatRange(0, min_open=True), help="Limit the total GPU-hours of its jobs.")
@with_session
def create_key(
    session: Session,
    name: str,
    scopes: Sequence[str],
    expires_in: str | None,
    project: str | None,
    service_account: str | None,
    max_devices: int | None,
    max_gpu_hours: float | None,
) -> None:
    """Create a key. It is printed only once."""
    made = session.client.team.make_key(
        name,
        scopes=scopes or None,
        expires_at=None if expires_in is None else datetime.now(UTC) + _duration(expires_in),
        project=project,
        service_account=service_account,
        max_devices=max_devices,
        max_gpu_hours=max_gpu_hours,
    )
    session.document(made)
    session.note(f"{made.id}: store this key now. It cannot be shown again.")
    session.show(Text(plain(made.secret)))


@keys.command("revoke")
@click.argument("key_ids", metavar="KEY...", nargs=-1, required=True)
@with_session
def revoke_keys(session: Session, key_ids: Sequence[str]) -> None:
    """Revoke keys at once, and every key that was created with them."""
    for key_id in key_ids:
        session.client.team.revoke_key(key_id)
        session.line({"revoked": key_id})
        session.show(f"Revoked {plain(key_id)}.")


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if found is None:
        wrong_use(f"--expires-in {text}: use a duration such as 12h, 30d or 8w.")
    return int(found[1]) * _LONG[found[2]]
