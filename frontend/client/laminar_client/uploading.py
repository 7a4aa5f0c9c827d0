"""Uploads a data set or a model: a file, or the files of a folder, in parts of 16 MiB.

Invariants:
- an interrupted upload is resumed by the same call: parts that have arrived, by hash, are not sent again;
- the hash of the whole is computed from the bytes read here and verified by the server, so a file that changes during
  the upload raises an error.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from .answers.assets import Asset, AssetFile
from .calls import assets
from .errors import LaminarError
from .wire import Emit, Procedure

PART_BYTES = 16 * 2**20
OnProgress = Callable[[int, int], None]


def upload(
    path: Path | str,
    *,
    kind: str,
    name: str | None = None,
    project: str | None = None,
    on_progress: OnProgress | None = None,
) -> Procedure[Asset]:
    """`kind`: data or model. `name`: the name for specs; by default that of the file or folder. The same call resumes
    an interrupted upload. `on_progress(bytes so far, total bytes)` is called on progress."""
    here = Path(path)
    found = _files_of(here)
    sizes = {file: each.stat().st_size for file, each in found.items()}
    asset = yield from assets.begin(kind, name or here.resolve().name, sizes, project=project)
    progress = _Progress(on_progress or (lambda so_far, in_all: None), sum(sizes.values()))
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
    """The hashes of the file's parts, all of which have arrived."""
    hashes = []
    with path.open("rb") as opened:
        for number, there in enumerate(listed.parts):
            wanted = min(PART_BYTES, listed.num_bytes - number * PART_BYTES)
            content = opened.read(wanted)
            if len(content) != wanted:
                raise LaminarError(f"{path} became shorter during the upload. Upload it again.")
            sha256 = hashlib.sha256(content).hexdigest()
            if sha256 != there:
                yield from assets.put_part(asset_id, listed.number, number, content, sha256=sha256)
            hashes.append(sha256)
            progress.add(wanted)
        if opened.read(1):
            raise LaminarError(f"{path} grew during the upload. Upload it again.")
    return hashes


def _files_of(path: Path) -> dict[str, Path]:
    """By the names in the asset."""
    if path.is_file():
        return {path.name: path}
    if not path.is_dir():
        raise LaminarError(f"{path} does not exist.")
    within = [each for each in sorted(path.iterdir()) if not each.name.startswith(".")]
    folders = [each.name for each in within if not each.is_file()]
    if folders:
        raise LaminarError(f"{path} contains folders ({', '.join(folders[:5])}). Upload a folder with files only.")
    found = {each.name: each for each in within if each.stat().st_size}
    if not found:
        raise LaminarError(f"{path} contains no non-empty files.")
    return found


class _Progress:
    def __init__(self, on_progress: OnProgress, in_all: int) -> None:
        self._on_progress, self._in_all, self._so_far = on_progress, in_all, 0

    def add(self, num_bytes: int) -> None:
        self._so_far += num_bytes
        self._on_progress(self._so_far, self._in_all)
