"""Frames of data's log, one for each entry: a head in JSON, then numbers and long texts as bytes.

    [length crc32] [length of the head | head | bytes …]      a field among the bytes is {"bytes": [kind, offset, size]}
                                                               in the head

Invariants:
- no pickle: reading a log from any source executes no code;
- an entry is read exactly as it was written, to the last bit of a log-prob and the last half of a surrogate pair, but
  without a mixture's routes: with them a token of Qwen3-30B-A3B would take 344 bytes instead of 8. A trajectory that is
  read from the log has unknown routes (engine/pipeline/decisions.md).
"""

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, BinaryIO, Final, get_args

from pydantic import TypeAdapter

from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.packed import Floats, Packed
from engine.pipeline.records import NO_ROUTES, Trajectory, TrajectoryContent
from engine.process.progress import working

Entry = Record | DataSnapshot | Trajectory
Referred = Callable[[Trajectory], object | None]
"""The JSON reference to a trajectory that is stored elsewhere; None: write the trajectory itself."""
Resolve = Callable[[Any], Trajectory]

HEAD: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_TYPES: Final = {kind.__name__: kind for kind in (*get_args(Record), DataSnapshot, Trajectory)}
_BYTES: Final = "bytes"
# A shorter text is smaller in the head than a pointer to it.
_LONG_TEXT: Final = 64
# Prose and its ids shrink to less than half; higher levels take up to four times as long for a tenth less.
_COMPRESSION: Final = 1
_FIELDS: Final[dict[type, tuple[str, ...] | None]] = {}
LIES: Final = "lies"
"""The only key of a reference to a trajectory."""


def frame(entry: Entry, *, referred: Referred = lambda trajectory: None) -> bytes:
    parts: list[bytes] = []
    head = json.dumps({type(entry).__name__: _Writer(parts, referred).plain(entry)}, separators=(",", ":")).encode()
    body = b"".join((_LENGTH.pack(len(head)), head, *parts))
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def entry_of(body: bytes, *, resolve: Resolve) -> Entry:
    """`resolve`: returns the trajectory of a reference."""
    [length] = _LENGTH.unpack_from(body)
    start = _LENGTH.size
    head, tail = body[start : start + length], memoryview(body)[start + length :]
    [(kind, content)] = json.loads(head).items()
    entry: Entry = _adapter(kind).validate_python(_read(content, tail, resolve))
    return entry


def frames(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yields each body and the end of its frame, from the file's position up to the first incomplete frame. Holds one
    body in memory, and reports progress with each."""
    at, num_bytes = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(at)
    while True:
        with working("log"):
            body = _read_body(file, at, num_bytes)
        if body is None:
            return
        at += HEAD.size + len(body)
        yield body, at


def body_at(file: BinaryIO, at: int) -> bytes | None:
    """The body of the frame at this offset; None if the frame is incomplete."""
    file.seek(at)
    return next((body for body, _ in frames(file)), None)


def _read_body(file: BinaryIO, at: int, num_bytes: int) -> bytes | None:
    if at + HEAD.size > num_bytes:
        return None
    length, crc = HEAD.unpack(file.read(HEAD.size))
    if at + HEAD.size + length > num_bytes:  # also of a torn head, whose length may be any number
        return None
    body = file.read(length)
    return body if zlib.crc32(body) == crc else None


class _Writer:
    def __init__(self, parts: list[bytes], referred: Referred) -> None:
        self._parts, self._referred, self._at = parts, referred, 0

    def plain(self, value: Any) -> Any:
        if isinstance(value, Packed):
            if isinstance(value, Floats):  # incompressible: only their first byte is not random
                return self._put("numbers", value.data)
            return self._put("squeezed", zlib.compress(value.data, _COMPRESSION))
        if isinstance(value, str):
            if len(value) < _LONG_TEXT:
                return value
            return self._put("text", zlib.compress(value.encode("utf-8", "surrogatepass"), _COMPRESSION))
        if isinstance(value, tuple):
            return [self.plain(each) for each in value]
        names = _names(type(value))
        if names is None:
            return value
        if isinstance(value, Trajectory) and (reference := self._referred(value)) is not None:
            return {LIES: reference}
        if isinstance(value, TrajectoryContent) and value.routes:
            value = replace(value, routes=NO_ROUTES)
        return {name: self.plain(getattr(value, name)) for name in names}

    def _put(self, kind: str, data: bytes) -> object:
        self._parts.append(data)
        self._at += len(data)
        return {_BYTES: [kind, self._at - len(data), len(data)]}


def _read(value: Any, tail: memoryview, resolve: Resolve) -> Any:
    if isinstance(value, list):
        return [_read(each, tail, resolve) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES}:
        kind, at, length = value[_BYTES]
        data = tail[at : at + length]
        if kind == "numbers":
            return bytes(data)
        return zlib.decompress(data) if kind == "squeezed" else str(zlib.decompress(data), "utf-8", "surrogatepass")
    if value.keys() == {LIES}:
        return resolve(value[LIES])
    return {name: _read(each, tail, resolve) for name, each in value.items()}


def _names(kind: type) -> tuple[str, ...] | None:
    """The field names of a record type; None for any other type."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None
    return _FIELDS[kind]


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind])
