"""laminar export."""

import os
from pathlib import Path
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..exporting.curves import TRACKERS
from .commands import laminar, with_session
from .completing import JOB
from .rendering import plain
from .session import Session

# Trackers' libraries tell their makers that they are used. This process is ours, and its user asked for files.
_TELL_NOBODY: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


@laminar.command("export")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.argument("tracker", type=click.Choice(list(TRACKERS)))
@click.option("--to", default=".", type=click.Path(file_okay=False, path_type=Path), help="The folder to put it into.")
@with_session
def export(session: Session, job_id: str, tracker: str, to: Path) -> None:
    """All curves of a job that is over, with its spec, as a run of another tracker. A job that is in the folder already
    is refused.

    \b
    mlflow       the store mlflow.db in the folder; of a store that is there already, one more run
    tensorboard  a folder named after the job
    wandb        likewise; an offline run, which `wandb sync` sends on

    Each needs its library: pip install 'laminar-client[mlflow]', [tensorboard] or [wandb].
    """
    for name, value in _TELL_NOBODY.items():
        os.environ.setdefault(name, value)
    console = session.console(errors=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = session.json or session.quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("steps", total=None)

        def told(so_far: int, in_all: int) -> None:
            bar.update(task, completed=so_far, total=in_all)

        made = session.client.jobs.export(job_id, tracker, to, told=told)
    session.document(
        {
            "job": job_id,
            "path": str(made.place),
            "series": made.num_series,
            "points": made.num_points,
            "means": made.num_means,
        }
    )
    session.show(plain(made.place))
    session.note(f"{made.num_points} points of {made.num_series} series. Look at them: {made.shown_by}")
    if made.num_means:
        session.note(f"{made.num_means} of them are means of up to 16 steps: the server keeps no more of so old a job.")
