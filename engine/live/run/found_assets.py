"""The models and data sets that lie on a node: in the shared folder by their names, and fetched ones by their hashes.

Invariants:
- names, kinds and sizes leave the node, no path and nothing else that is in a file;
- a look is bounded: so many entries of a folder, so many files of an entry; what cannot be read is passed over.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from engine.spec.node_report import MOST_TOLD, FoundAsset

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""As an entry that can be registered is called."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MOST_ENTRIES: Final = 5_000
_MOST_FILES: Final = 1_000
_MOST_CONFIG_BYTES: Final = 1_000_000
_LONGEST_KIND: Final = 60


def found_models(folder: Path) -> list[FoundAsset]:
    """Folders with a config.json."""
    return [
        FoundAsset(name=path.name, kind=_kind_of(path / "config.json"), num_bytes=_size_of(path))
        for path in islice((each for each in _entries(folder) if (each / "config.json").is_file()), MOST_TOLD)
    ]


def found_data(folder: Path) -> list[FoundAsset]:
    return [FoundAsset(name=path.name, num_bytes=_size_of(path)) for path in islice(_entries(folder), MOST_TOLD)]


def found_hashes(folder: Path) -> list[str]:
    """Of what is there whole."""
    return [path.name for path in _entries(folder) if _HASH.fullmatch(path.name)][:MOST_TOLD]


def _entries(folder: Path) -> Iterator[Path]:
    """In the order of their names."""
    try:
        with os.scandir(folder) as found:
            names = sorted(each.name for each in islice(found, _MOST_ENTRIES))
    except OSError:
        return
    yield from (folder / name for name in names if _NAME.fullmatch(name))


def _kind_of(config: Path) -> str:
    try:
        if config.stat().st_size > _MOST_CONFIG_BYTES:
            return ""
        said = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return ""
    kind = said.get("model_type") if isinstance(said, dict) else None
    return kind[:_LONGEST_KIND] if isinstance(kind, str) and kind.isprintable() else ""


def _size_of(path: Path) -> int:
    """Of a folder, of the files in it."""
    try:
        if path.is_file():
            return path.stat().st_size
        with os.scandir(path) as found:
            return sum(each.stat().st_size for each in islice(found, _MOST_FILES) if each.is_file())
    except OSError:
        return 0
