"""laminar watch: a live progress bar in a terminal, plain lines elsewhere.

Invariant: Ctrl-C only ends the display; the job keeps running, and the command to watch it again is printed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ..answers.telemetry import Event
from ..calls.watching import Progress as Look
from .commands import laminar
from .completing import JOB
from .jobs import outcome_code
from .rendering import number, plain, state_text
from .session import INTERRUPTED, Session

# The most important series, in this order; the job's page and `laminar metrics` have all of them. Names and labels are
# those of the server's engine/spec/series.py.
SHOWN_SERIES: Final[Mapping[str, str]] = {
    "reward/mean": "reward",
    "evaluation/reward": "held-out reward",
    "evaluation/reward_error": "held-out error",
    "evaluation/pass_rate": "pass@k",
    "train/loss": "loss",
    "train/entropy": "entropy",
    "length/mean": "length",
    "throughput/tokens_per_s": "throughput",
    "staleness/mean": "staleness",
}
_QUIET_EVENTS = frozenset({"evaluated", "reason_changed"})


@laminar.command("watch")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("--interval", "interval_s", default=1.0, show_default=True, type=click.FloatRange(0.1, 60))
@click.pass_context
def watch(context: click.Context, job_id: str, interval_s: float) -> None:
    """Show a job's progress until it has ended. The exit code is its outcome; Ctrl-C leaves it running."""
    context.exit(watch_to_its_end(context.find_root().obj, job_id, interval_s=interval_s))


def watch_to_its_end(session: Session, job_id: str, *, interval_s: float = 1.0) -> int:
    looks = session.client.jobs.watch(job_id, names=list(SHOWN_SERIES), interval_s=interval_s)
    console = session.console()
    last: Look | None = None
    try:
        with _screen(session, console) as draw:
            for look in looks:
                draw(look, last)
                last = look
    except KeyboardInterrupt:
        session.note(
            f"The job keeps running. To watch it again: laminar watch {job_id}. To cancel it: laminar cancel {job_id}"
        )
        return INTERRUPTED
    assert last is not None, "a watch ends when the job ends"
    if not session.json and not console.is_terminal:
        return outcome_code(last.job)
    session.show(Text.assemble(plain(last.job.id), " has ", state_text(last.job.state), _because(last)))
    return outcome_code(last.job)


Draw = Callable[[Look, Look | None], None]


def _screen(session: Session, console: Console) -> AbstractContextManager[Draw]:
    if session.json:
        return _json_lines(session)
    return _bars(console) if console.is_terminal else _lines(session)


@contextmanager
def _json_lines(session: Session) -> Iterator[Draw]:
    def draw(look: Look, before: Look | None) -> None:
        snapshot = {"job": look.job, "latest": look.latest, "events": list(look.events)}
        if before is None or look.events or look.latest != before.latest or look.job.raw != before.job.raw:
            session.line(snapshot)

    yield draw


@contextmanager
def _lines(session: Session) -> Iterator[Draw]:
    def draw(look: Look, before: Look | None) -> None:
        for event in look.events:
            session.show(f"{event.at.astimezone():%H:%M:%S}  {event_text(event)}")
        done, total = look.job.progress.done, look.job.progress.total
        if done > (before.job.progress.done if before else 0):
            session.show(f"{_counted(look)} {done}/{total}  {_values(look)}".rstrip())
        if look.job.is_over:
            session.show(f"{look.job.state}{_because(look)}")

    yield draw


@contextmanager
def _bars(console: Console) -> Iterator[Draw]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    task = bar.add_task("", total=None)
    below = Text()

    with Live(Group(bar, below), console=console, refresh_per_second=4, transient=False) as live:

        def draw(look: Look, before: Look | None) -> None:
            job = look.job
            for event in look.events:
                if event.type not in _QUIET_EVENTS:
                    live.console.print(Text(f"{event.at.astimezone():%H:%M:%S}  {event_text(event)}", style="dim"))
            shown = plain(job.phase) if job.state == "running" and job.phase else plain(job.state)
            bar.update(task, description=shown, total=job.progress.total, completed=job.progress.done)
            waiting = plain(job.message) if job.state == "queued" else _values(look)
            live.update(Group(bar, Text(waiting or " ", overflow="ellipsis", no_wrap=True)), refresh=True)

        yield draw


def _counted(look: Look) -> str:
    return "step" if look.job.progress.unit == "steps" else f"{plain(look.job.progress.unit)} answered"


def _values(look: Look) -> str:
    return "  ".join(
        f"{name} {number(look.latest[series][1])}" for series, name in SHOWN_SERIES.items() if series in look.latest
    )


def _because(look: Look) -> str:
    return f": {plain(look.job.message)}" if look.job.message else ""


def event_text(event: Event) -> str:
    """One line: type, change of state, reason and message."""
    moved = f" {plain(event.from_state) or 'new'} → {plain(event.to_state)}" if event.to_state else ""
    reason = f" [{plain(event.reason)}]" if event.reason else ""
    message = f" {plain(event.message)}" if event.message else ""
    return f"{plain(event.type)}{moved}{reason}{message}"
