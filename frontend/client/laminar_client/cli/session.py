"""One run of the command line: its server, output format and exit code.

Invariants:
- with --json, standard output holds only JSON; errors are JSON on standard error;
- an error's text is printed through `plain`, and no error contains the key.
"""

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import click
from rich.console import Console, RenderableType
from rich.text import Text

from ..answers.record import Answer
from ..client import Laminar
from ..errors import (
    ApiError,
    BadSettings,
    Conflict,
    InvalidRequest,
    LaminarError,
    LimitReached,
    MissingLibrary,
    NotAllowed,
    NotFinished,
    NotFound,
    ServerFault,
    Unreachable,
    Unreadable,
)
from .rendering import json_text, plain

OK, FAILED, USAGE, NOT_FOUND, REFUSED, CONFLICT, LIMIT, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 7, 130
EXIT_CODES: Final[Mapping[int, str]] = {
    OK: "done; with `--watch`, `watch` and `wait`: the job succeeded",
    FAILED: "the job failed or was cancelled, or a download was damaged",
    USAGE: "usage error: invalid option, spec or settings, or a missing library",
    NOT_FOUND: "not found, or owned by another team",
    REFUSED: "the key is not valid, or lacks permission",
    CONFLICT: "not possible in the current state, changed meanwhile by someone else, or `wait` timed out",
    LIMIT: "a quota, budget, key limit or rate limit is exceeded",
    UNREACHABLE: "the server does not respond, or is not a Laminar server",
    INTERRUPTED: "interrupted (Ctrl-C); jobs keep running",
}
_CODES: Final[tuple[tuple[type[LaminarError], int], ...]] = (
    (NotFound, NOT_FOUND),
    (NotAllowed, REFUSED),
    (Conflict, CONFLICT),
    (LimitReached, LIMIT),
    (InvalidRequest, USAGE),
    (BadSettings, USAGE),
    (MissingLibrary, USAGE),
    (ServerFault, UNREACHABLE),
    (Unreachable, UNREACHABLE),
    (Unreadable, UNREACHABLE),
    (NotFinished, CONFLICT),
)
WIDE: Final = 10_000  # if not a terminal: no truncation or wrapping, so that programs read whole lines


def exit_code_of(error: LaminarError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


@dataclass(slots=True)
class Session:
    profile: str | None = None
    json: bool = False
    quiet: bool = False
    no_color: bool = False
    _client: Laminar | None = field(default=None, repr=False)

    @property
    def client(self) -> Laminar:
        if self._client is None:
            self._client = Laminar(profile=self.profile)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def console(self, *, errors: bool = False) -> Console:
        stream = sys.stderr if errors else sys.stdout
        console = Console(
            file=stream, no_color=self.no_color or None, highlight=False, markup=False, emoji=False, soft_wrap=False
        )
        if not console.is_terminal:
            console.width = WIDE
        return console

    def show(self, found: RenderableType) -> None:
        """Prints for people, not with --json; strings go through `plain`."""
        if not self.json:
            self.console().print(Text(plain(found, lines=True)) if isinstance(found, str) else found)

    def note(self, text: str) -> None:
        """Prints to standard error, apart from the result."""
        if not self.json and not self.quiet:
            self.console(errors=True).print(Text(plain(text, lines=True), style="dim"))

    def document(self, found: object) -> None:
        """With --json: one document."""
        if self.json:
            click.echo(json_text(_raw(found), indent=2))

    def line(self, found: object) -> None:
        """With --json: one line of a stream, flushed at once."""
        if self.json:
            click.echo(json_text(_raw(found)))
            sys.stdout.flush()

    def fail(self, error: LaminarError) -> int:
        code = exit_code_of(error)
        if self.json:
            known: Mapping[str, Any] = error.problem if isinstance(error, ApiError) else {"detail": str(error)}
            click.echo(json_text({"error": {**known, "exit_code": code}}), err=True)
            return code
        console = self.console(errors=True)
        head = error.detail if isinstance(error, ApiError) else str(error)
        console.print(Text.assemble(("error: ", "bold red"), plain(head, lines=True)))
        if isinstance(error, ApiError):
            for place in error.errors:
                console.print(Text(f"  {plain(place.pointer) or '(whole)'}: {plain(place.message)}"))
            if code == UNREACHABLE and error.request_id:
                console.print(Text(f"  request {plain(error.request_id)}", style="dim"))
        return code

    def fail_use(self, error: click.ClickException) -> int:
        """Usage errors: click's text, which names the command."""
        if self.json:
            click.echo(json_text({"error": {"detail": error.format_message(), "exit_code": error.exit_code}}), err=True)
        else:
            said = io.StringIO()
            error.show(said)
            click.echo(plain(said.getvalue(), lines=True), err=True, nl=False)
        return error.exit_code


def _raw(found: object) -> object:
    if isinstance(found, Answer):
        return found.raw
    if isinstance(found, list | tuple):
        return [_raw(each) for each in found]
    if isinstance(found, dict):
        return {name: _raw(each) for name, each in found.items()}
    return found


def wrong_use(message: str) -> NoReturn:
    raise click.UsageError(message)
