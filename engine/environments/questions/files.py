"""A data set's files: one, or all of a folder, each with a reader for its format.

Invariant: rows come in the order of the files' names, so that they have the same numbers in every process.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from engine.environments.questions.lines import LineFile
from engine.environments.questions.question import Row
from engine.environments.questions.tables import TableFile

LINES: Final = (".jsonl", ".ndjson", ".json")
TABLES: Final = (".parquet", ".arrow", ".feather")


class RowFile(Protocol):
    name: str
    unit: str

    def rows(self) -> Iterator[Row]: ...

    def at(self, place: int) -> Mapping[str, Any]:
        """Raises `ValueError` if the file has changed."""
        ...


def open_files(path: Path, columns: Collection[str] | None) -> list[RowFile]:
    """`columns`: the ones to read of a table, None for all. Raises `ValueError`."""
    try:
        if not path.is_dir():
            return [_open_file(path, columns)]
        within = [each for each in sorted(path.iterdir()) if each.suffix in (*LINES, *TABLES)]
        if not within:
            kinds = ", ".join(f"*{suffix}" for suffix in (*LINES, *TABLES))
            raise ValueError(f"data: {path.name}: no data files in this folder; add files named {kinds}")
        return [_open_file(each, columns) for each in within]
    except OSError as error:
        raise ValueError(f"data: {path.name} cannot be read: {error.strerror}") from error


def _open_file(path: Path, columns: Collection[str] | None) -> RowFile:
    """Reads a file with any other suffix than a table's as JSONL."""
    if path.suffix not in TABLES:
        return LineFile(path.name, path.open("rb"))
    return TableFile(path, columns)
