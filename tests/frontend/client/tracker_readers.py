"""Reads exports back with the trackers' libraries, and W&B's log with a reader of its framing.

`History` is name -> [(step, value, seconds since 1970)], in the tracker's order.
"""

import json
import sqlite3
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

History = dict[str, list[tuple[int, float, float]]]


@dataclass(frozen=True, kw_only=True)
class ReadBack:
    history: History
    parameters: Mapping[str, Any]
    outcome: str


def read_tensorboard(to: Path, job_id: str) -> ReadBack:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    read = EventAccumulator(str(to / job_id), size_guidance={"scalars": 0}).Reload()
    sessions = read.summary_metadata
    told = {name: HParamsPluginData.FromString(each.plugin_data.content) for name, each in sessions.items()
            if each.plugin_data.plugin_name == "hparams"}  # fmt: skip
    start = told["_hparams_/session_start_info"].session_start_info
    kinds = {"number_value": float, "string_value": str, "bool_value": bool}
    parameters = {
        name: kinds[value.WhichOneof("kind")](getattr(value, value.WhichOneof("kind")))
        for name, value in start.hparams.items()
    }
    history = {
        tag: [(each.step, each.value, each.wall_time) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]
    }
    ended = told["_hparams_/session_end_info"].session_end_info
    return ReadBack(history=history, parameters=parameters, outcome=str(ended.status))


def read_mlflow(to: Path, job_id: str) -> ReadBack:
    """Reads the rows of MLflow's pages directly from its database."""
    with sqlite3.connect(to / "mlflow.db") as db:
        ((run, status),) = db.execute(
            "SELECT run_uuid, status FROM runs JOIN tags USING (run_uuid) "
            "WHERE key = 'laminar.job' AND value = ? AND lifecycle_stage = 'active'", (job_id,)
        ).fetchall()  # fmt: skip
        rows = db.execute(
            "SELECT key, step, value, is_nan, timestamp FROM metrics WHERE run_uuid = ? ORDER BY step", (run,)
        ).fetchall()
        parameters = dict(db.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall())
    history: History = defaultdict(list)
    for name, step, value, is_nan, at in rows:
        history[name].append((step, float("nan") if is_nan else value, at / 1_000))
    return ReadBack(history=dict(history), parameters=parameters, outcome=status)


def read_wandb(to: Path, job_id: str) -> ReadBack:
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    history: History = defaultdict(list)
    parameters: dict[str, Any] = {}
    outcome = ""
    for data in _log_records((to / job_id / f"run-{job_id}.wandb").read_bytes()):
        record = Record.FromString(data)
        match record.WhichOneof("record_type"):
            case "history":
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                       for item in record.history.item}  # fmt: skip
                at = row["_timestamp"]
                for name, value in row.items():
                    if not name.startswith("_"):
                        history[name].append((record.history.step.num, float(value), at))
            case "run":
                assert (record.run.run_id, record.run.host) == (job_id, "laminar")
                parameters |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            case "exit":
                outcome = str(record.exit.exit_code)
    return ReadBack(history=dict(history), parameters=parameters, outcome=outcome)


READERS: Mapping[str, Callable[[Path, str], ReadBack]] = {
    "mlflow": read_mlflow,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
}
_BLOCK, _HEAD = 32_768, 7
_WHOLE, _FIRST, _LAST = 1, 2, 4


def _log_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log format, with W&B's header and zlib's CRC-32."""
    assert content[:4] == b":W&B"
    at, parts = _HEAD, b""
    while at < len(content):
        if _BLOCK - at % _BLOCK < _HEAD:
            at += _BLOCK - at % _BLOCK
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, at)
        data = content[at + _HEAD : at + _HEAD + length]
        assert checksum == zlib.crc32(data, zlib.crc32(bytes([kind]))), f"damaged at {at}"
        at += _HEAD + length
        parts = data if kind in (_WHOLE, _FIRST) else parts + data
        if kind in (_WHOLE, _LAST):
            yield parts
