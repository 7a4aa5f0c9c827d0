"""The process that writes a Parquet or Arrow file as lines of JSON (`tables.py`).

    python -m engine.environments.questions.table_lines PATH DESCRIPTOR ROOM COLUMNS

A line is an object of the row's columns without nulls; with values that JSON does not have, a list of that object and
of one with the others as text; of a row that cannot be used, a text that explains why.
"""

import errno
import json
import os
import resource
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow
from pyarrow import ipc, parquet

from engine.environments.questions.lines import MAX_LINE_BYTES, TOO_LONG
from engine.environments.questions.tables import Status
from engine.process.held_memory import sizes_in

MORE_MEMORY: Final = 1 << 30
"""Beyond what the process uses at its start. Honest pages have 1 MB, and a group of rows is decoded in parts."""
ROWS_OF_A_BATCH: Final = 256
ROWS_FOR_NOTHING: Final = 100_000
"""So many rows may be in a file of any size, and one more for each of its bytes: distinct prompts take more."""
MAX_UNUSABLE: Final = 2_000  # a data set is refused at half as many
_ARROW_FILE: Final = b"ARROW1"

Fields = dict[str, Any]


def main() -> int:
    path, descriptor, room, columns = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    _limit(room)
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
            _write_lines(_batches(path, columns), file, max_rows=ROWS_FOR_NOTHING + path.stat().st_size)
    except MemoryError:
        return _refuse(f"needs more than {MORE_MEMORY} bytes of memory at once; write it with smaller groups of rows")
    except (pyarrow.ArrowException, ValueError, RecursionError) as error:
        return _refuse(f"cannot be read: {error}")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return Status.FULL
    return 0


def _limit(room: int) -> None:
    used = sizes_in(Path("/proc/self/status"))["VmData"]
    for limited, most in ((resource.RLIMIT_DATA, used + MORE_MEMORY), (resource.RLIMIT_FSIZE, room)):
        _, hard = resource.getrlimit(limited)
        resource.setrlimit(limited, (most if hard < 0 else min(most, hard), hard))
    pyarrow.set_cpu_count(1)


def _refuse(reason: str) -> int:
    print(reason)  # noqa: T201
    return Status.REFUSED


def _batches(path: Path, columns: Collection[str] | None) -> Iterator[Any]:
    if path.suffix == ".parquet":
        table = parquet.ParquetFile(path, pre_buffer=False)  # otherwise pyarrow keeps all bytes until the end
        read = [name for name in table.schema_arrow.names if columns is None or name in columns]
        yield from table.iter_batches(batch_size=ROWS_OF_A_BATCH, columns=read, use_threads=False)
        return
    for batch in _arrow_batches(path):
        read = [name for name in batch.schema.names if columns is None or name in columns]
        for first in range(0, batch.num_rows, ROWS_OF_A_BATCH):
            yield batch.select(read).slice(first, ROWS_OF_A_BATCH)


def _arrow_batches(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
    if not is_file:
        yield from ipc.open_stream(pyarrow.memory_map(str(path)))
        return
    table = ipc.open_file(pyarrow.memory_map(str(path)))
    for number in range(table.num_record_batches):
        yield table.get_batch(number)


def _write_lines(batches: Iterator[Any], file: BinaryIO, *, max_rows: int) -> None:
    num_rows = num_unusable = 0
    for batch in batches:
        num_rows += batch.num_rows
        if num_rows > max_rows:
            raise ValueError(f"more than {max_rows} rows, which is more than a file of its size can hold")
        for fields in _rows(batch):
            line = _line_of(fields)
            num_unusable += fields is None or line is None
            file.write(line or _TOO_LONG_LINE)
        if num_unusable > MAX_UNUSABLE:
            return


def _rows(batch: Any) -> Iterator[Fields | None]:
    """A batch at once if it has no more bytes than a line may have, otherwise row by row; None for a row with more."""
    if batch.nbytes <= MAX_LINE_BYTES:
        yield from batch.to_pylist()
        return
    for at in range(batch.num_rows):
        row = _without_dictionaries(batch.slice(at, 1))
        yield row.to_pylist()[0] if row.nbytes <= MAX_LINE_BYTES else None


def _without_dictionaries(row: Any) -> Any:
    """`nbytes` of a column that is encoded by a dictionary counts all of its values, for each row."""
    columns = [
        column.dictionary_decode() if isinstance(column, pyarrow.DictionaryArray) else column for column in row.columns
    ]
    return pyarrow.RecordBatch.from_arrays(columns, names=row.schema.names)


_TOO_LONG_LINE: Final = json.dumps(TOO_LONG).encode() + b"\n"


def _line_of(fields: Fields | None) -> bytes | None:
    """None: the line is too long."""
    if fields is None:
        return None
    plain, texts = {}, {}
    for name, value in fields.items():
        if isinstance(value, str | int | float | list | dict):
            plain[name] = _without_nulls(value)
        elif value is not None:
            texts[name] = repr(value)
    line = json.dumps([plain, texts] if texts else plain, ensure_ascii=False, default=str).encode()
    return line + b"\n" if len(line) < MAX_LINE_BYTES else None


def _without_nulls(value: Any) -> Any:
    """Drops None: a table has every field in every struct, None where JSON has none."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
