"""The root command: the options of every command, and exit codes for errors."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from ..client import VERSION
from ..errors import LaminarError
from .session import EXIT_CODES, INTERRUPTED, USAGE, Session

P = ParamSpec("P")
T = TypeVar("T")


def _session(context: click.Context) -> Session:
    root = context.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session()
    return root.obj


def _noted(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """The option can come before or after the command's name."""

    def note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(_session(context), name, value)

    return note


def _shared_options() -> list[click.Parameter]:
    flags = (
        ("json", "Print JSON: one document, or one line per item of a stream."),
        ("quiet", "Print no notes."),
        ("no_color", "Print no colours (same as NO_COLOR)."),
    )
    options: list[click.Parameter] = [
        click.Option(
            [f"--{name.replace('_', '-')}"], is_flag=True, help=help_text, expose_value=False, callback=_noted(name)
        )
        for name, help_text in flags
    ]
    profile = click.Option(
        ["--profile"], metavar="NAME", help="Use this stored login.", expose_value=False, callback=_noted("profile")
    )
    return [profile, *options]


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Group(click.Group):
    command_class = Command
    group_class = type

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Root(Group):
    def main(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Any:
        """Exits with one of `EXIT_CODES`."""
        kwargs["standalone_mode"] = False
        session = kwargs.setdefault("obj", Session())
        try:
            code = super().main(args, *rest, **kwargs)
        except LaminarError as error:
            code = session.fail(error)
        except click.exceptions.Abort as end:
            is_interrupt = isinstance(end.__cause__, KeyboardInterrupt)
            click.echo("interrupted" if is_interrupt else "error: standard input has ended", err=True)
            code = INTERRUPTED if is_interrupt else USAGE
        except click.ClickException as error:
            code = session.fail_use(error)
        finally:
            session.close()
        raise SystemExit(code if isinstance(code, int) else 0)


def _codes() -> str:
    return "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


@click.group(
    cls=Root,
    epilog=_codes(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, package_name="laminar-client", prog_name="laminar", message="%(prog)s %(version)s")
def laminar() -> None:
    """Post-train language models by reinforcement learning on a Laminar server.

    To start, run `laminar login`, `laminar templates` and `laminar submit --template NAME --watch`.
    """


def with_session(function: Callable[Concatenate[Session, P], T]) -> Callable[P, T]:
    """Passes the `Session` to the command."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(_session(click.get_current_context()), *args, **kwargs)

    return command
