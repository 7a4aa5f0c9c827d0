"""Shell completion: the script for a shell, and ids from the server.

Invariant: completion prints no errors and has a short timeout. Results are cached for a few seconds in a folder that
only the user can read, without the key.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from ..client import Laminar
from ..errors import LaminarError
from ..profiles import resolve_login
from ..retrying import Patience
from .commands import laminar
from .rendering import plain
from .session import Session

REMEMBERED_S = 5.0
TIMEOUT_S = 2.0
MOST = 50
Items = list[tuple[str, str]]


@laminar.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  laminar completion bash > ~/.local/share/bash-completion/completions/laminar
    zsh:   laminar completion zsh > "${fpath[1]}/_laminar"
    fish:  laminar completion fish > ~/.config/fish/completions/laminar.fish
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    click.echo(made(laminar, {}, "laminar", "_LAMINAR_COMPLETE").source())


class Completed(click.ParamType[str]):
    """An id whose choices come from the server."""

    def __init__(self, name: str, ask: Callable[[Laminar], Items]) -> None:
        self.name = name
        self._ask = ask

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        session = ctx.find_root().obj
        profile = session.profile if isinstance(session, Session) else None
        with suppress(LaminarError, OSError, ValueError):
            found = remembered(self.name, profile, self._ask)
            return [CompletionItem(id, help=plain(said)) for id, said in found if id.startswith(incomplete)]
        return []


def remembered(what: str, profile: str | None, ask: Callable[[Laminar], Items]) -> Items:
    login = resolve_login(profile)
    place = _cache_folder() / f"{what}-{_mark(login.url + login.key)}.json"
    with suppress(OSError, ValueError):
        kept = json.loads(place.read_text("utf-8"))
        if 0 <= time.time() - float(kept["at"]) < REMEMBERED_S:
            return [(str(id), str(said)) for id, said in kept["items"]]
    with Laminar(login.url, login.key, timeout_s=TIMEOUT_S, patience=Patience(tries=1)) as client:
        items = ask(client)
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"at": time.time(), "items": items}, file)
    return items


def _mark(text: str) -> str:
    """A short hash that does not reveal the key."""
    return sha256(text.encode()).hexdigest()[:16]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "laminar"


def _jobs(client: Laminar) -> Items:
    return [(job.id, f"{job.state} {job.name}") for job in client.jobs.each(most=MOST)]


def _checkpoints(client: Laminar) -> Items:
    return [(each.id, f"step {each.step} of {each.job}") for each in client.checkpoints.each(most=MOST)]


def _jobs_and_checkpoints(client: Laminar) -> Items:
    return _checkpoints(client) + _jobs(client)


def _templates(client: Laminar) -> Items:
    return [(each.name, each.title) for each in client.team.templates()]


JOB = Completed("job", _jobs)
CHECKPOINT = Completed("checkpoint", _checkpoints)
CHECKPOINT_OR_JOB = Completed("checkpoint-or-job", _jobs_and_checkpoints)
TEMPLATE = Completed("template", _templates)
