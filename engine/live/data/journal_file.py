"""Data's log on disk: frames of one record each, synced before anybody is told that they are kept.

    <number>.journal    [length crc32 json] [length crc32 json] …     the first may be a snapshot: a frame for each
                                                                      trajectory in it, then one for the rest

Invariants:
- `append` returns only after the bytes are on the disk; a frame half written when the process dies is cut off on
  reading, and was promised to nobody;
- a snapshot is a new file, whole and named before the old ones are deleted: at every instant one file tells all;
- nothing is as large as the job: encoding and decoding hold up every other thread, so each trajectory is a frame;
- no pickle: a log is read by whoever finds it.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import TypeAdapter

from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.records import Trajectory
from engine.policy.pace import SLOWEST_SYNC_S
from engine.signs import at_work

_HEAD: Final = struct.Struct("<II")
_SUFFIX: Final = ".journal"
_TYPES: Final = {kind.__name__: kind for kind in (*get_args(Record), DataSnapshot, Trajectory)}
_NUMBERED: Final = "trajectory_number"


class JournalFile:
    def __init__(self, folder: Path) -> None:
        """Goes on behind what is there; a torn end is cut off."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        files = _files(folder)
        self._number = int(files[-1].stem) if files else 1
        self._file = self._path(self._number).open("ab")
        _, whole = _read(self._path(self._number))
        self._file.truncate(whole)
        _sync_folder(folder)

    def append(self, records: Sequence[Record]) -> None:
        self._file.write(b"".join(_frame(record) for record in records))
        self._sync()

    def begin_anew(self, snapshot: DataSnapshot) -> None:
        """`snapshot`: the state with everything appended so far."""
        fresh = self._path(self._number + 1)
        unfinished = fresh.with_suffix(".new")
        with unfinished.open("wb") as file:
            for frame in _snapshot_frames(snapshot):
                with at_work("log", num_bytes=len(frame), constant_s=SLOWEST_SYNC_S):
                    file.write(frame)
            with at_work("log", num_bytes=file.tell(), constant_s=SLOWEST_SYNC_S):
                file.flush()
                os.fsync(file.fileno())
        unfinished.rename(fresh)
        _sync_folder(self._folder)
        self._file.close()
        self._number += 1
        self._file = fresh.open("ab")
        for old in _files(self._folder):
            if old != fresh:
                old.unlink()

    def close(self) -> None:
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}{_SUFFIX}"


def read_journal(folder: Path) -> tuple[DataSnapshot | None, list[Record]]:
    """The newest whole snapshot, and what came after it."""
    files = _files(folder)
    entries = _read(files[-1])[0] if files else []
    if entries and isinstance(entries[0], DataSnapshot):
        return entries[0], [entry for entry in entries[1:] if not isinstance(entry, DataSnapshot)]
    return None, [entry for entry in entries if not isinstance(entry, DataSnapshot)]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}")) if folder.is_dir() else []


def _read(file: Path) -> tuple[list[Record | DataSnapshot], int]:
    """The entries, and how many bytes of the file are whole."""
    with at_work("log", num_bytes=file.stat().st_size):
        content = file.read_bytes()
    entries: list[Record | DataSnapshot] = []
    of_snapshot: list[Trajectory] = []
    whole = 0
    for body, end in _frames(content):
        with at_work("log", num_bytes=len(body)):
            entry = _entry(body, of_snapshot)
        if isinstance(entry, Trajectory):
            of_snapshot.append(entry)
        else:
            entries.append(entry)
            whole = end
    return entries, whole


def _frames(content: bytes) -> Iterator[tuple[bytes, int]]:
    at = 0
    while at + _HEAD.size <= len(content):
        length, crc = _HEAD.unpack_from(content, at)
        body = content[at + _HEAD.size : at + _HEAD.size + length]
        at += _HEAD.size + length
        if len(body) < length or zlib.crc32(body) != crc:
            return
        yield body, at


def _snapshot_frames(snapshot: DataSnapshot) -> Iterator[bytes]:
    trajectories: list[Trajectory] = []
    rest = _without(trajectories, snapshot)
    yield from map(_frame, trajectories)
    yield _framed("DataSnapshot", rest)


def _without(trajectories: list[Trajectory], value: object) -> object:
    """As JSON has it, with a number in the place of each trajectory."""
    if isinstance(value, Trajectory):
        trajectories.append(value)
        return {_NUMBERED: len(trajectories) - 1}
    if is_dataclass(value):
        return {each.name: _without(trajectories, getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_without(trajectories, each) for each in value]
    return value


def _with(trajectories: Sequence[Trajectory], value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_NUMBERED}:
            return trajectories[value[_NUMBERED]]
        return {name: _with(trajectories, each) for name, each in value.items()}
    return [_with(trajectories, each) for each in value] if isinstance(value, list) else value


def _frame(entry: Record | Trajectory) -> bytes:
    kind = type(entry).__name__
    return _framed(kind, _adapter(kind).dump_python(entry))


def _framed(kind: str, content: object) -> bytes:
    body = json.dumps({kind: content}, separators=(",", ":")).encode()  # ASCII: halves of surrogate pairs survive
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _entry(body: bytes, of_snapshot: Sequence[Trajectory]) -> Record | DataSnapshot | Trajectory:
    [(kind, content)] = json.loads(body).items()
    if kind == DataSnapshot.__name__:
        content = _with(of_snapshot, content)
    entry: Record | DataSnapshot | Trajectory = _adapter(kind).validate_python(content)
    return entry


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
