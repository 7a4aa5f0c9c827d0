"""Writes full trajectories to a Parquet file, which any notebook can read, and reads single ones from it.

Invariant: reading one trajectory reads the file's footer and the few rows around it, however large the file is.
"""

import io
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from backend.store.port import ObjectStore
from engine.spec.facts import TokenTrace, TrajectorySample

ROWS_A_GROUP: Final = 16
_TURN: Final = pa.struct(
    [
        ("author", pa.string()),
        ("text", pa.string()),
        ("first_token", pa.int32()),
        ("num_tokens", pa.int32()),
        ("tool", pa.string()),
        ("arguments", pa.string()),
        ("seconds", pa.float64()),
        ("error", pa.string()),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("attempt", pa.int32()),
        ("step", pa.int64()),
        ("prompt_ordinal", pa.int64()),
        ("sample", pa.int32()),
        ("version", pa.int64()),
        ("staleness", pa.int32()),
        ("num_tokens", pa.int32()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("outcome", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("remark", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("versions", pa.list_(pa.int64())),
        ("written", pa.list_(pa.bool_())),
        ("end", pa.string()),
        ("reason", pa.string()),
        ("group_size", pa.int32()),
        ("turns", pa.list_(_TURN)),
        ("parts", pa.map_(pa.string(), pa.float64())),
        ("texts", pa.list_(pa.string())),
        ("trainer_logprobs", pa.list_(pa.float64())),
    ]
)
_TRACE: Final = ("token_ids", "logprobs", "versions", "written", "texts", "trainer_logprobs")


def parquet_of(rows: Sequence[tuple[int, int, TrajectorySample]]) -> bytes:
    """Rows are (attempt, step, sample)."""
    records = [
        {"attempt": attempt, "step": step}
        | sample.model_dump(exclude={"trace"})
        | (dict.fromkeys(_TRACE) if sample.trace is None else sample.trace.model_dump())
        for attempt, step, sample in rows
    ]
    sink = io.BytesIO()
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    pq.write_table(table, sink, compression="zstd", row_group_size=ROWS_A_GROUP)
    return sink.getvalue()


def sample_at(store: ObjectStore, key: str, num_bytes: int, row: int) -> TrajectorySample:
    """Raises the errors of the store."""
    with pq.ParquetFile(pa.PythonFile(_Ranged(store, key, num_bytes), mode="r")) as file:
        [record] = file.read_row_group(row // ROWS_A_GROUP).slice(row % ROWS_A_GROUP, 1).to_pylist()
    values: dict[str, Any] = {name: value for name, value in record.items() if name not in {"attempt", "step", *_TRACE}}
    trace = None if record["token_ids"] is None else TokenTrace(**{name: record[name] for name in _TRACE})
    return TrajectorySample(**values | {"parts": dict(values["parts"])}, trace=trace)


class _Ranged(io.RawIOBase):
    """An object of the store as a file, read range by range."""

    def __init__(self, store: ObjectStore, key: str, num_bytes: int) -> None:
        self._store, self._key, self._num_bytes, self._place = store, key, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._num_bytes}[whence]
        self._place = base + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._num_bytes - self._place)
        content = self._store.get_range(self._key, self._place, left if size < 0 else min(size, left))
        self._place += len(content)
        return content
