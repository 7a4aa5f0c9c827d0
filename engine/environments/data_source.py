"""Resolves the data sets that a job of the control plane may read.

Invariant: a name resolves to built-in data, to a file directly in the store's `data` folder, or to a folder there whose
files all lie in it, links resolved. A path could read another team's data, or anything that the nodes can read: only
`python -m engine run` accepts paths.
"""

import re
from pathlib import Path
from typing import Final

from engine.spec.assets.named_assets import BUILT_IN_DATA
from engine.spec.environments.params import files_of
from engine.spec.job import EnvironmentSpec

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_QUESTIONS: Final = Path(__file__).parent / "questions"


def locate_data(spec: EnvironmentSpec, folder: Path | None) -> EnvironmentSpec:
    """The spec with names of data replaced by paths: built-in files, or files of `folder`; without a folder, other
    values already are paths. Raises `ValueError`."""
    params = dict(spec.params)
    for key in files_of(spec.name):
        name = params.get(key, "")
        if name in BUILT_IN_DATA:
            params[key] = str(_QUESTIONS / f"{name}.jsonl")
        elif name != "" and folder is not None:
            params[key] = str(_resolve_file(key, name, folder))
    return spec.model_copy(update={"params": params})


def _resolve_file(key: str, name: object, folder: Path) -> Path:
    path, home = folder / str(name), folder.resolve()
    exists = path.is_file() or (path.is_dir() and key != "corpus")
    if not _NAME.fullmatch(str(name)) or not exists or path.resolve().parent != home:
        raise ValueError(f"environment.params.{key}: the name of a file in {folder}, got {name!r}")
    if path.is_dir() and any(each.resolve().parent != path.resolve() for each in path.iterdir()):
        raise ValueError(
            f"environment.params.{key}: a folder without links to files elsewhere, got {name!r} with such links"
        )
    return path
