"""Rows of Parquet and Arrow files, found again by their number.

Parquet is packed in groups of rows, and Arrow's stream is read from its beginning: in neither can a row be fetched
without its neighbours. Both are laid out once as an Arrow file of small batches, which is mapped and has no name, so
that it is gone with the process. An Arrow file is read where it lies.

Invariants:
- no more than one batch of rows is in memory, and while Parquet is laid out one group of them; what is mapped belongs
  to the file's pages;
- a file that is small because it repeats itself takes neither all memory nor all of the disk: a row is as long as a
  line may be, and what is laid out leaves half of the room that is free.
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

ROWS_OF_A_BATCH: Final = 256  # what is read, at most, for one row
_ARROW_FILE: Final = b"ARROW1"


class TableFile:
    unit = "row"

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self._reader = ipc.open_file(pyarrow.memory_map(str(path)) if _is_arrow_file(path) else _laid_out(path))
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
        fields = _without_nothing(fields)
        assert isinstance(fields, dict)
        return fields

    def _batch(self, number: int) -> Any:
        with self._lock:
            return self._reader.get_batch(number)


def _rows(batch: Any, start: int) -> Iterator[Row]:
    """Of so many bytes as a line may have, at once; of more, one at a time."""
    if batch.nbytes <= MAX_LINE_BYTES:
        for at, fields in enumerate(batch.to_pylist(), start=start):
            yield Row(place=at, number=at + 1, fields=_without_nothing(fields))
        return
    for number in range(batch.num_rows):
        one, at = batch.slice(number, 1), start + number
        [fields] = one.to_pylist()
        # A column of repeated values says the bytes of all of them for each row.
        is_long = one.nbytes > MAX_LINE_BYTES and len(json.dumps(fields, default=str)) > MAX_LINE_BYTES
        if is_long:
            yield Row(place=at, number=at + 1, wrong=f"longer than {MAX_LINE_BYTES} bytes")
        else:
            yield Row(place=at, number=at + 1, fields=_without_nothing(fields))


def _is_arrow_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ARROW_FILE)) == _ARROW_FILE


def _laid_out(path: Path) -> Any:
    schema, batches = _batches(path)
    with tempfile.NamedTemporaryFile(prefix="laminar-questions-") as file:
        room = shutil.disk_usage(file.name).free // 2
        with ipc.new_file(file, schema) as writer:
            for batch in batches:
                for first in range(0, batch.num_rows, ROWS_OF_A_BATCH):
                    writer.write_batch(batch.slice(first, ROWS_OF_A_BATCH))
                if file.tell() > room:
                    raise ValueError(
                        f"data: {path.name}: its rows must take less than half of what is free in "
                        f"{tempfile.gettempdir()}, {room} bytes, and take more; name a larger folder with TMPDIR"
                    )
        file.flush()
        pyarrow.default_memory_pool().release_unused()  # of the largest group of rows
        return pyarrow.memory_map(file.name)


def _batches(path: Path) -> tuple[Any, Iterator[Any]]:
    if path.suffix == ".parquet":
        table = parquet.ParquetFile(path, pre_buffer=False)  # else all of its bytes are kept until the end
        return table.schema_arrow, table.iter_batches(batch_size=ROWS_OF_A_BATCH)
    stream = ipc.open_stream(pyarrow.memory_map(str(path)))
    return stream.schema, iter(stream)


def _without_nothing(value: Any) -> Any:
    """A table has every column in every row, and every field in every struct: what is not there is None in it."""
    if isinstance(value, dict):
        return {name: _without_nothing(each) for name, each in value.items() if each is not None}
    return [_without_nothing(each) for each in value] if isinstance(value, list) else value
