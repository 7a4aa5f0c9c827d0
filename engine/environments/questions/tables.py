"""Rows of Parquet and Arrow files, addressed by their number.

Parquet is compressed in groups of rows, and an Arrow stream is read from its beginning: neither gives access to a
single row. Both are rewritten once as an unnamed, memory-mapped Arrow file of small batches, which is deleted when the
process ends. An Arrow file is mapped in place.

Invariants:
- at most one batch of rows is in memory, and one group of rows while Parquet is rewritten; mapped pages belong to the
  page cache;
- a small file that expands to many rows exhausts neither memory nor disk: a row is bounded like a line of JSONL, and
  the rewritten file takes at most half of the free disk space.
"""

import json
import shutil
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow
from pyarrow import ipc, parquet

from engine.environments.questions.lines import MAX_LINE_BYTES
from engine.environments.questions.question import Row

ROWS_OF_A_BATCH: Final = 256  # the most rows that are read to get one
_ARROW_FILE: Final = b"ARROW1"


class TableFile:
    unit = "row"

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._reader = ipc.open_file(pyarrow.memory_map(str(path)) if _is_arrow_file(path) else _rewrite(path))
        except pyarrow.ArrowException as error:
            raise ValueError(f"data: {path.name} cannot be read: {error}") from error
        self._lock = threading.Lock()
        self._starts = [0]
        for number in range(self._reader.num_record_batches):
            self._starts.append(self._starts[-1] + self._batch(number).num_rows)

    def rows(self) -> Iterator[Row]:
        for number in range(self._reader.num_record_batches):
            start, batch = self._starts[number], self._batch(number)
            for first in range(0, batch.num_rows, ROWS_OF_A_BATCH):
                yield from _rows(batch.slice(first, ROWS_OF_A_BATCH), start + first)

    def at(self, place: int) -> Mapping[str, Any]:
        number = bisect_right(self._starts, place) - 1
        [fields] = self._batch(number).slice(place - self._starts[number], 1).to_pylist()
        fields = _without_nulls(fields)
        assert isinstance(fields, dict)
        return fields

    def _batch(self, number: int) -> Any:
        with self._lock:
            return self._reader.get_batch(number)


def _rows(batch: Any, start: int) -> Iterator[Row]:
    """Converts a batch at once if it has no more bytes than a line may have, otherwise row by row."""
    if batch.nbytes <= MAX_LINE_BYTES:
        for at, fields in enumerate(batch.to_pylist(), start=start):
            yield Row(place=at, number=at + 1, fields=_without_nulls(fields))
        return
    for number in range(batch.num_rows):
        one, at = batch.slice(number, 1), start + number
        [fields] = one.to_pylist()
        # nbytes counts all values of a dictionary-encoded column for each row, hence the second measure.
        is_long = one.nbytes > MAX_LINE_BYTES and len(json.dumps(fields, default=str)) > MAX_LINE_BYTES
        if is_long:
            yield Row(place=at, number=at + 1, wrong=f"longer than {MAX_LINE_BYTES} bytes")
        else:
            yield Row(place=at, number=at + 1, fields=_without_nulls(fields))


def _is_arrow_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ARROW_FILE)) == _ARROW_FILE


def _rewrite(path: Path) -> Any:
    schema, batches = _batches(path)
    with tempfile.NamedTemporaryFile(prefix="laminar-questions-") as file:
        room = shutil.disk_usage(file.name).free // 2
        with ipc.new_file(file, schema) as writer:
            for batch in batches:
                for first in range(0, batch.num_rows, ROWS_OF_A_BATCH):
                    writer.write_batch(batch.slice(first, ROWS_OF_A_BATCH))
                if file.tell() > room:
                    raise ValueError(
                        f"data: {path.name}: its uncompressed rows exceed half of the free space in "
                        f"{tempfile.gettempdir()} ({room} bytes); set TMPDIR to a folder with more space"
                    )
        file.flush()
        pyarrow.default_memory_pool().release_unused()  # as much as the largest group of rows took
        return pyarrow.memory_map(file.name)


def _batches(path: Path) -> tuple[Any, Iterator[Any]]:
    if path.suffix == ".parquet":
        table = parquet.ParquetFile(path, pre_buffer=False)  # otherwise pyarrow keeps all bytes until the end
        return table.schema_arrow, table.iter_batches(batch_size=ROWS_OF_A_BATCH)
    stream = ipc.open_stream(pyarrow.memory_map(str(path)))
    return stream.schema, iter(stream)


def _without_nulls(value: Any) -> Any:
    """Drops None: a table has every column in every row and every field in every struct, None where JSON has none."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
