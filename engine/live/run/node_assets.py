"""The models and data sets on a node: those in the shared folder by name, fetched ones by hash.

Invariants:
- only names, kinds and sizes leave the node, no path and no other content of a file;
- a scan is bounded in entries of a folder and files of an entry; unreadable entries are skipped.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from engine.spec.node_report import MOST_REPORTED, NodeAsset

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The names that can be registered."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_MOST_ENTRIES: Final = 5_000
_MOST_FILES: Final = 1_000
_MOST_CONFIG_BYTES: Final = 1_000_000
_LONGEST_KIND: Final = 60


def node_models(folder: Path) -> list[NodeAsset]:
    """Folders with a config.json."""
    return [
        NodeAsset(name=path.name, kind=_kind_of(path / "config.json"), num_bytes=_size_of(path))
        for path in islice((each for each in _entries(folder) if (each / "config.json").is_file()), MOST_REPORTED)
    ]


def node_data(folder: Path) -> list[NodeAsset]:
    return [NodeAsset(name=path.name, num_bytes=_size_of(path)) for path in islice(_entries(folder), MOST_REPORTED)]


def found_hashes(folder: Path) -> list[str]:
    """The hashes of completely fetched assets."""
    return [path.name for path in _entries(folder) if _HASH.fullmatch(path.name)][:MOST_REPORTED]


def _entries(folder: Path) -> Iterator[Path]:
    """The entries in the order of their names."""
    try:
        with os.scandir(folder) as scan:
            names = sorted(each.name for each in islice(scan, _MOST_ENTRIES))
    except OSError:
        return
    yield from (folder / name for name in names if _NAME.fullmatch(name))


def _kind_of(config: Path) -> str:
    try:
        if config.stat().st_size > _MOST_CONFIG_BYTES:
            return ""
        document = json.loads(config.read_bytes())
    except (OSError, ValueError):
        return ""
    kind = document.get("model_type") if isinstance(document, dict) else None
    return kind[:_LONGEST_KIND] if isinstance(kind, str) and kind.isprintable() else ""


def _size_of(path: Path) -> int:
    """The size of a file, or of the files directly in a folder."""
    try:
        if path.is_file():
            return path.stat().st_size
        with os.scandir(path) as scan:
            return sum(each.stat().st_size for each in islice(scan, _MOST_FILES) if each.is_file())
    except OSError:
        return 0
