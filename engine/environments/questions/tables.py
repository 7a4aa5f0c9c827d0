"""Parquet and Arrow files, read as lines of JSON which a process of its own wrote (`table_lines.py`).

    a.parquet ──▶ table_lines.py: pyarrow, bounded memory ──▶ an unnamed file of lines ──▶ LineFile

A table is the customer's: a few hundred bytes of Parquet may be gigabytes of one row, and pyarrow is no parser for
hostile bytes. Neither is ever in the process of an engine's part, and a single row can be read by its offset, which
Parquet (compressed in groups of rows) and an Arrow stream do not offer.

Invariants:
- the memory of that process, its disk and its rows are bounded by constants and by the size of the file, and it ends
  with the thread that waits for it;
- only columns that are read are written.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final

import engine
from engine.environments.questions.lines import LineFile
from engine.environments.questions.question import Row
from engine.environments.sandbox.starting import program_at

ROOM_BYTES: Final = 1 << 30
EXPANSION: Final = 100
"""The lines may have so many times the bytes of the file, and `ROOM_BYTES` more; text is compressed 3 to 10 times."""
_ENGINE: Final = Path(engine.__file__).parents[1]


class Status(IntEnum):
    """How the writing process ended, where not with 0."""

    REFUSED = 3  # standard output has the reason
    FULL = 4


class Unreadable:
    """A value that JSON does not have, such as a date: shown as text, never a prompt or an answer."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class TableFile(LineFile):
    unit = "row"

    def __init__(self, path: Path, columns: Collection[str] | None) -> None:
        """`columns`: those to read, None for all. Raises `ValueError`."""
        super().__init__(path.name, _written_as_lines(path, columns))

    def _parse(self, line: bytes, place: int, number: int) -> Row:
        match json.loads(line):
            case str() as wrong:
                return Row(place=place, number=number, wrong=wrong)
            case [dict() as fields, dict() as texts]:
                unreadable = {name: Unreadable(text) for name, text in texts.items()}
                return Row(place=place, number=number, fields={**fields, **unreadable})
            case fields:
                return Row(place=place, number=number, fields=fields)


def _written_as_lines(path: Path, columns: Collection[str] | None) -> BinaryIO:
    file = tempfile.TemporaryFile(prefix="laminar-questions-")  # noqa: SIM115 - open as long as the data set
    free, expanded = shutil.disk_usage(tempfile.gettempdir()).free // 2, EXPANSION * path.stat().st_size + ROOM_BYTES
    wanted = None if columns is None else sorted(columns)
    arguments = [str(path.absolute()), str(file.fileno()), str(min(free, expanded)), json.dumps(wanted)]
    command = [sys.executable, "-m", "engine.environments.questions.table_lines", *arguments]
    done = subprocess.run(
        [program_at("setpriv"), "--pdeathsig", "KILL", "--", *command],
        cwd=_ENGINE, stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=(file.fileno(),), check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return file
    file.close()
    match done.returncode:
        case Status.REFUSED:
            reason = done.stdout.strip()
        case Status.FULL if free < expanded:
            reason = f"its uncompressed rows exceed half of the free space in {tempfile.gettempdir()} ({free} bytes); "
            reason += "set TMPDIR to a folder with more space"
        case Status.FULL:
            reason = (
                f"its uncompressed rows exceed {EXPANSION} times its size ({expanded} bytes); write it uncompressed"
            )
        case status:
            reason = f"cannot be read: its reader ended with status {status}: {done.stderr.strip()[-500:]}"
    raise ValueError(f"data: {path.name}: {reason}")
