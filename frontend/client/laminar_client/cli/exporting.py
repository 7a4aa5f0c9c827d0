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

# Disables telemetry of the trackers' libraries: an export only writes files.
_TELL_NOBODY: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}


@laminar.command("export")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.argument("tracker", type=click.Choice(list(TRACKERS)))
@click.option("--to", default=".", type=click.Path(file_okay=False, path_type=Path), help="Target folder.")
@with_session
def export(session: Session, job_id: str, tracker: str, to: Path) -> None:
    """Export all series and the spec of an ended job as a run of another tracker. A job that is already in the folder
    is refused.

    \b
    mlflow       a run in the store mlflow.db in the folder, which is created if needed
    tensorboard  a folder named after the job
    wandb        a folder named after the job, with an offline run for `wandb sync`

    Each needs its library: pip install 'laminar-client[mlflow]', [tensorboard] or [wandb].
    """
    for name, value in _TELL_NOBODY.items():
        os.environ.setdefault(name, value)
    console = session.console(errors=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = session.json or session.quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("steps", total=None)

        def on_progress(so_far: int, in_all: int) -> None:
            bar.update(task, completed=so_far, total=in_all)

        made = session.client.jobs.export(job_id, tracker, to, on_progress=on_progress)
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
    session.note(f"Exported {made.num_points} points of {made.num_series} series. To view them: {made.shown_by}")
    if made.num_means:
        session.note(f"{made.num_means} points are means of up to 16 steps: the server keeps only these for old jobs.")
