"""Downloads a checkpoint: one .tar behind a short-lived link, verified, and unpacked if requested.

Invariants:
- the final name exists only with complete content of the announced sizes and hashes; until then, content is in a
  hidden folder next to it, which is deleted however the download ends;
- the archive cannot choose paths: only announced names are unpacked, into one folder;
- requests to the link carry no key; after a broken download a new link is requested.
"""

import contextlib
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .answers.checkpoints import Download, DownloadFile
from .calls.checkpoints import link
from .errors import Damaged, LaminarError, Unreachable
from .wire import Lost, Open, Pause, Procedure, ReadChunk, Reply, Request

TRIES = 4
PAUSE_S = 1.0
_PIECE = 1 << 20


def download(
    checkpoint_id: str,
    to: Path | str = ".",
    *,
    unpack: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> Procedure[Path]:
    """Downloads the model into the folder `to`, as a Hugging Face folder, or as a .tar with `unpack=False`; -> its
    path. `on_progress(bytes so far, total bytes)` is called on progress."""
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    with _hidden(folder) as hidden:
        archive = hidden / "download.tar"
        announced = yield from _fetched(checkpoint_id, archive, on_progress or (lambda so_far, in_all: None))
        name = _plain_name(announced.filename)
        whole = _unpacked(archive, announced, hidden) if unpack else archive
        goal = folder / (name.removesuffix(".tar") if unpack else name)
        if goal.exists():
            raise LaminarError(f"{goal} already exists. Move it, or choose another folder.")
        whole.rename(goal)
    return goal


@contextlib.contextmanager
def _hidden(folder: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix=".laminar-", dir=folder))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _fetched(checkpoint_id: str, archive: Path, on_progress: Callable[[int, int], None]) -> Procedure[Download]:
    cause: LaminarError = Unreachable("no data received")
    for tried in range(TRIES):
        if tried:
            yield Pause(PAUSE_S * 2**tried)
        announced = yield from link(checkpoint_id)
        try:
            so_far = yield from _stream_into(archive, announced, on_progress)
        except Lost as lost:
            cause = Unreachable(f"The download was interrupted: {lost}")
            continue
        if so_far == announced.num_bytes:
            return announced
        cause = Damaged(f"Received {so_far} of {announced.num_bytes} announced bytes. Try again.")
    raise cause


def _stream_into(archive: Path, announced: Download, on_progress: Callable[[int, int], None]) -> Procedure[int]:
    reply: Reply = yield Open(Request(method="GET", path=announced.url, repeatable=True))
    if not reply.is_good:
        raise reply.error()
    so_far = 0
    with archive.open("wb") as file:
        while chunk := (yield ReadChunk()):
            so_far += len(chunk)
            if so_far > announced.num_bytes:
                raise Damaged(f"Received more than the {announced.num_bytes} announced bytes. Try again.")
            file.write(chunk)
            on_progress(so_far, announced.num_bytes)
    return so_far


def _unpacked(archive: Path, announced: Download, hidden: Path) -> Path:
    folder = hidden / "unpacked"
    folder.mkdir()
    wanted = {file.name: file for file in announced.files}
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = member.name.partition("/")[2]
                file = wanted.pop(name, None)
                content = packed.extractfile(member) if member.isreg() else None
                if file is None or content is None:
                    raise Damaged(f"The archive contains an unannounced entry: {member.name!r:.100}.")
                _write_checked(_place_in(folder, name), content, file)
    except tarfile.TarError as broken:
        raise Damaged(f"The archive cannot be read: {broken}.") from None
    if wanted:
        raise Damaged(f"Missing from the archive: {', '.join(sorted(wanted))}.")
    return folder


def _place_in(folder: Path, name: str) -> Path:
    place = folder.joinpath(*(_plain_name(part) for part in name.split("/")))
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _write_checked(path: Path, content: IO[bytes], file: DownloadFile) -> None:
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as out:
        while piece := content.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            out.write(piece)
    if size != file.num_bytes or digest.hexdigest() != file.sha256:
        raise Damaged(f"{file.name} differs from the announced size or SHA-256. Download it again.")


def _plain_name(name: str) -> str:
    if not name or name != Path(name).name or name in {".", ".."} or "\0" in name:
        raise Damaged(f"The server announced an invalid file name: {name!r:.100}.")
    return name
