"""The data that a job of the control plane may read.

Invariant: a name leads to what is built in, to a file directly in the store's `data` folder, or to a folder there whose
files are its own, links followed. A path would let one team read another's data, or whatever else the nodes can read.
Only `python -m engine run` takes paths.
"""

import re
from pathlib import Path
from typing import Final

from engine.spec.environment_params import files_of
from engine.spec.job import EnvironmentSpec
from engine.spec.named_assets import BUILT_IN_DATA

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_QUESTIONS: Final = Path(__file__).parent / "questions"


def located_data(spec: EnvironmentSpec, folder: Path | None) -> EnvironmentSpec:
    """The spec with files in place of their names: built in, or of this folder; without one they are paths. Raises
    `ValueError`."""
    params = dict(spec.params)
    for key in files_of(spec.name):
        said = params.get(key, "")
        if said in BUILT_IN_DATA:
            params[key] = str(_QUESTIONS / f"{said}.jsonl")
        elif said != "" and folder is not None:
            params[key] = str(_file(key, said, folder))
    return spec.model_copy(update={"params": params})


def _file(key: str, name: object, folder: Path) -> Path:
    path, home = folder / str(name), folder.resolve()
    is_there = path.is_file() or (path.is_dir() and key != "corpus")
    if not _NAME.fullmatch(str(name)) or not is_there or path.resolve().parent != home:
        raise ValueError(f"environment.params.{key}: a file in {folder}; got {name!r}")
    if path.is_dir() and any(each.resolve().parent != path.resolve() for each in path.iterdir()):
        raise ValueError(
            f"environment.params.{key}: a folder whose files are its own, got {name!r} with links to others"
        )
    return path
