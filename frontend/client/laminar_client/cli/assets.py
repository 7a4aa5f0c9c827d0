"""laminar upload, assets, delete-asset."""

from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..answers.assets import Asset
from .commands import laminar, with_session
from .rendering import ago, plain, size, table
from .session import Session

KIND = click.Choice(["data", "model"])


@laminar.command("upload")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--kind", required=True, type=KIND, help="Kind of asset.")
@click.option("--name", help="Name to use in specs (default: name of the file or folder).")
@click.option("--project", metavar="ID", help="Limit the asset to jobs of this project.")
@with_session
def upload(session: Session, path: Path, kind: str, name: str | None, project: str | None) -> None:
    """Upload a file, or the files of a folder, as a data set or model of your team. Run the command again to resume an
    interrupted upload."""
    console = session.console(errors=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = session.json or session.quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("upload", total=None)

        def on_progress(so_far: int, in_all: int) -> None:
            bar.update(task, completed=so_far, total=in_all)

        asset = session.client.assets.upload(path, kind=kind, name=name, project=project, on_progress=on_progress)
    session.document(asset)
    session.show(plain(asset.reference or asset.id))


@laminar.command("assets")
@click.option("--kind", type=KIND, help="Only this kind.")
@with_session
def assets(session: Session, kind: str | None) -> None:
    """List the team's data sets and uploaded models, uploads in progress, and the used storage."""
    found = list(session.client.assets.each(kind=kind))
    storage = session.client.assets.storage()
    session.document({"assets": found, "storage": storage})
    columns = ("id", "kind", "name", "state", "size", "files", "made", "by")
    rows = [
        (each.id, each.kind, each.reference or each.name, _state(each), size(each.num_bytes), each.num_files,
         ago(each.created_at), "everybody's" if each.is_shared else each.created_by)
        for each in found
    ]  # fmt: skip
    session.show(table(*columns, rows=rows, numbers=("size", "files")))
    session.note(f"{size(storage.used_bytes)} of {size(storage.max_bytes)} used")


@laminar.command("delete-asset")
@click.argument("asset_id", metavar="ASSET")
@with_session
def delete_asset(session: Session, asset_id: str) -> None:
    """Delete a data set or a model, or cancel its upload. An asset that an unfinished job needs cannot be deleted."""
    session.client.assets.remove(asset_id)
    session.document({"removed": asset_id})
    session.show(f"Deleted {plain(asset_id)}.")


def _state(asset: Asset) -> str:
    if asset.state != "uploading":
        return asset.state
    return f"uploading, {asset.received_parts} of {asset.num_parts} parts"
