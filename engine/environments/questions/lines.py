"""Rows of a JSONL file, addressed by the offset of their first byte.

Invariant: at most one line is in memory.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

from engine.environments.questions.question import Row

MAX_LINE_BYTES: Final = 4 << 20  # a longer line means that the file has lost its line ends
TOO_LONG: Final = f"longer than {MAX_LINE_BYTES} bytes"


class LineFile:
    unit = "line"

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name, self._file = name, file

    def rows(self) -> Iterator[Row]:
        place = 0
        self._file.seek(0)
        for number, line in enumerate(iter(lambda: self._file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                yield Row(place=place, number=number, wrong=TOO_LONG)
                return  # the search for the next line is not worth its time
            if line.strip():
                yield self._parse(line, place, number)
            place += len(line)

    def at(self, place: int) -> Mapping[str, Any]:
        row = self._parse(self._line_at(place), place, 0)
        if row.wrong:
            raise ValueError(row.wrong)
        return row.fields

    def _line_at(self, place: int) -> bytes:
        """Reads by offset (`pread`) and leaves the file's position alone, as several threads read at once."""
        read, chunk = b"", 16 << 10
        while b"\n" not in read and len(read) < MAX_LINE_BYTES:
            part = os.pread(self._file.fileno(), chunk, place + len(read))
            if not part:
                break
            read += part
        return read.partition(b"\n")[0]

    def _parse(self, line: bytes, place: int, number: int) -> Row:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Row(place=place, number=number, wrong=f"not a line of JSON: {error}")
        if not isinstance(fields, dict):
            return Row(place=place, number=number, wrong=f"expected a JSON object, got {type(fields).__name__}")
        return Row(place=place, number=number, fields=fields)
