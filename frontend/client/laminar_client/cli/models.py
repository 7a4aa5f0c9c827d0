"""laminar checkpoints, download, promote, unpromote, models."""

from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..answers.checkpoints import Checkpoint
from ..errors import NotFound
from .commands import laminar, with_session
from .completing import CHECKPOINT, CHECKPOINT_OR_JOB, JOB
from .rendering import ago, number, plain, size, table, with_error
from .session import Session


@laminar.command("checkpoints")
@click.argument("job_id", metavar="[JOB]", required=False, type=JOB)
@click.option("-n", "most", default=50, show_default=True, type=click.IntRange(1), help="Maximum number of rows.")
@with_session
def checkpoints(session: Session, job_id: str | None, most: int) -> None:
    """List a job's checkpoints, or the team's, newest first."""
    client = session.client
    found = client.jobs.checkpoints(job_id)[:most] if job_id else list(client.checkpoints.each(most=most))
    session.document(found)
    rows = [
        (
            each.id,
            each.step,
            each.state,
            _reward(each.metrics),
            _evaluated(each),
            size(each.num_bytes),
            each.pinned,
            ago(each.created_at),
        )
        for each in found
    ]
    columns = ("id", "step", "state", "reward", "evaluated", "size", "pinned", "made")
    session.show(table(*columns, rows=rows, numbers=("step", "reward", "evaluated", "size")))


def _reward(metrics: dict[str, float]) -> str:
    return number(metrics["reward/mean"]) if "reward/mean" in metrics else "–"


def _evaluated(checkpoint: Checkpoint) -> str:
    """From the newest evaluation, else from its own job's held-out evaluation at this step."""
    if checkpoint.evaluations:
        newest = checkpoint.evaluations[0]
        return with_error(newest.reward_mean, newest.reward_error)
    own = checkpoint.metrics.get("evaluation/reward")
    return "–" if own is None else number(own)


@laminar.command("download")
@click.argument("checkpoint_or_job", metavar="CHECKPOINT|JOB", type=CHECKPOINT_OR_JOB)
@click.option("--to", default=".", type=click.Path(file_okay=False, path_type=Path), help="Target folder.")
@click.option("--tar", is_flag=True, help="Do not unpack the .tar.")
@with_session
def download(session: Session, checkpoint_or_job: str, to: Path, tar: bool) -> None:
    """Download a checkpoint's model as a Hugging Face folder; for a job, its newest complete checkpoint. Sizes and
    hashes are verified."""
    checkpoint_id = _newest_of(session, checkpoint_or_job)
    console = session.console(errors=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = session.json or session.quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("download", total=None)

        def on_progress(so_far: int, in_all: int) -> None:
            bar.update(task, completed=so_far, total=in_all)

        path = session.client.checkpoints.download(checkpoint_id, to, unpack=not tar, on_progress=on_progress)
    session.document({"checkpoint": checkpoint_id, "path": str(path)})
    session.show(plain(path))


def _newest_of(session: Session, id: str) -> str:
    if not id.startswith("job_"):
        return id
    for each in session.client.jobs.checkpoints(id):
        if each.state == "complete":
            return each.id
    raise NotFound(404, {"code": "not_found", "detail": f"{id} has no complete checkpoint yet."})


@laminar.command("promote")
@click.argument("checkpoint_id", metavar="CHECKPOINT", type=CHECKPOINT)
@click.argument("name")
@click.option("--note", default="", help="Note on this version.")
@with_session
def promote(session: Session, checkpoint_id: str, name: str, note: str) -> None:
    """Promote a checkpoint to a version of the model NAME."""
    version = session.client.checkpoints.promote(checkpoint_id, name, note=note)
    session.document(version)
    session.show(f"{plain(version.model)} version {version.number} is {plain(version.checkpoint)}")


@laminar.command("unpromote")
@click.argument("name")
@click.argument("version", type=click.IntRange(1), required=False)
@with_session
def unpromote(session: Session, name: str, version: int | None) -> None:
    """For admins: remove a VERSION of the model NAME, or, without VERSION, the model, which must have no versions. The
    checkpoint is kept, and the number is never reused."""
    if version is None:
        session.client.models.remove(name)
    else:
        session.client.models.remove_version(name, version)
    session.document({"removed": name, "version": version})
    session.show(f"{plain(name)}{'' if version is None else f' version {version}'} removed.")


@laminar.command("models")
@click.argument("name", required=False)
@with_session
def models(session: Session, name: str | None) -> None:
    """List the team's models; with NAME, its versions and their origins."""
    if name is None:
        found = list(session.client.models.each())
        session.document(found)
        session.show(table("name", "made", rows=[(each.name, ago(each.created_at)) for each in found]))
        return
    model = session.client.models.show(name)
    session.document(model)
    rows = [
        (each.number, each.checkpoint, each.lineage.get("job"), each.created_by, ago(each.created_at), each.note)
        for each in model.versions
    ]
    session.show(table("version", "checkpoint", "job", "by", "made", "note", rows=rows))
