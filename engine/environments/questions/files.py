"""A data set's files: one, or all those of a folder, each read by its kind.

Invariant: rows come in the order of the files' names, so that every process numbers them alike.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from engine.environments.questions.lines import LineFile
from engine.environments.questions.question import Row

LINES: Final = (".jsonl", ".ndjson", ".json")
TABLES: Final = (".parquet", ".arrow", ".feather")


class RowFile(Protocol):
    name: str
    unit: str

    def rows(self) -> Iterator[Row]: ...

    def at(self, place: int) -> Mapping[str, Any]:
        """Raises `ValueError` where the file is not what it was."""
        ...


def open_files(path: Path) -> list[RowFile]:
    """Raises `ValueError`."""
    try:
        if not path.is_dir():
            return [_opened(path)]
        within = [each for each in sorted(path.iterdir()) if each.suffix in (*LINES, *TABLES)]
        if not within:
            kinds = ", ".join(f"*{suffix}" for suffix in (*LINES, *TABLES))
            raise ValueError(f"data: {path.name}: a folder with files of rows ({kinds}), and it has none")
        return [_opened(each) for each in within]
    except OSError as error:
        raise ValueError(f"data: {path.name} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> RowFile:
    """What is no table by its name is read as lines, whatever it is called."""
    if path.suffix not in TABLES:
        return LineFile(path)
    from engine.environments.questions.tables import TableFile  # pyarrow: only where there are tables

    return TableFile(path)
