"""Upload a data set or a model: a file, or the files of a folder, in parts of 16 MiB.

Invariants:
- whoever was interrupted, however, asks for the same again: what has arrived, by its hash, is not sent again;
- the server is told what the whole must be, computed from what was read here; a file that changed meanwhile is told,
  not sent half old and half new.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from .answers.assets import Asset, AssetFile
from .calls import assets
from .errors import LaminarError
from .wire import Emit, Procedure

PART_BYTES = 16 * 2**20
Told = Callable[[int, int], None]


def upload(
    path: Path | str,
    *,
    kind: str,
    name: str | None = None,
    project: str | None = None,
    told: Told | None = None,
) -> Procedure[Asset]:
    """`kind`: data or model. `name`: as specs will say it; else the file's or the folder's own. Asked again after an
    interruption it goes on. `told(bytes so far, bytes in all)` is called as it goes."""
    here = Path(path)
    found = _files_of(here)
    sizes = {file: each.stat().st_size for file, each in found.items()}
    asset = yield from assets.begin(kind, name or here.resolve().name, sizes, project=project)
    progress = _Progress(told or (lambda so_far, in_all: None), sum(sizes.values()))
    whole = hashlib.sha256()
    for listed in (yield from _listed(asset.id)):
        hashes = yield from _sent(asset.id, listed, found[listed.name], progress)
        whole.update(f"{listed.name} {listed.num_bytes} {' '.join(hashes)}\n".encode())
    return (yield from assets.complete(asset.id, num_bytes=asset.num_bytes, sha256=whole.hexdigest()))


def _listed(asset_id: str) -> Procedure[list[AssetFile]]:
    found: list[AssetFile] = []
    outcome = None
    stream = assets.files(asset_id)
    while True:
        try:
            effect = stream.send(outcome)
        except StopIteration:
            return found
        outcome = None
        if isinstance(effect, Emit):
            found.append(effect.item)
        else:
            outcome = yield effect


def _sent(asset_id: str, listed: AssetFile, path: Path, progress: "_Progress") -> Procedure[list[str]]:
    """The hashes of the file's parts, each of which is there now."""
    hashes = []
    with path.open("rb") as opened:
        for number, there in enumerate(listed.parts):
            wanted = min(PART_BYTES, listed.num_bytes - number * PART_BYTES)
            content = opened.read(wanted)
            if len(content) != wanted:
                raise LaminarError(f"{path} has become shorter while it was sent: upload it again.")
            sha256 = hashlib.sha256(content).hexdigest()
            if sha256 != there:
                yield from assets.put_part(asset_id, listed.number, number, content, sha256=sha256)
            hashes.append(sha256)
            progress.add(wanted)
        if opened.read(1):
            raise LaminarError(f"{path} has grown while it was sent: upload it again.")
    return hashes


def _files_of(path: Path) -> dict[str, Path]:
    """By the names that they will have."""
    if path.is_file():
        return {path.name: path}
    if not path.is_dir():
        raise LaminarError(f"There is no file or folder {path}.")
    within = [each for each in sorted(path.iterdir()) if not each.name.startswith(".")]
    folders = [each.name for each in within if not each.is_file()]
    if folders:
        raise LaminarError(f"{path} holds folders ({', '.join(folders[:5])}); what is uploaded is files in one folder.")
    found = {each.name: each for each in within if each.stat().st_size}
    if not found:
        raise LaminarError(f"{path} holds no file that has something in it.")
    return found


class _Progress:
    def __init__(self, told: Told, in_all: int) -> None:
        self._told, self._in_all, self._so_far = told, in_all, 0

    def add(self, num_bytes: int) -> None:
        self._so_far += num_bytes
        self._told(self._so_far, self._in_all)
