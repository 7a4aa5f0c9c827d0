"""Frames of data's log: an entry each, as a head that any JSON reader reads and its numbers and long texts as bytes.

    [length crc32] [length of the head | head | bytes …]      the head says {"bytes": [what, from, how many]} where
                                                               a field lies among the bytes

Invariants:
- no pickle: a log is read by whoever finds it;
- what was written is read as it was, to the last bit of a log-prob and the last half of a surrogate pair.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, BinaryIO, Final, get_args

from pydantic import TypeAdapter

from engine.pipeline.journal import DataSnapshot, Record
from engine.pipeline.packed import Floats, Packed
from engine.pipeline.records import Trajectory

Entry = Record | DataSnapshot | Trajectory
Named = Callable[[Trajectory], object | None]
"""What stands for a trajectory that lies elsewhere, as JSON has it; None: it is to be written."""
Found = Callable[[Any], Trajectory]

HEAD: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_TYPES: Final = {kind.__name__: kind for kind in (*get_args(Record), DataSnapshot, Trajectory)}
_BYTES: Final = "bytes"
# A shorter one is smaller in the head than what points to it.
_LONG_TEXT: Final = 64
# Prose and its ids shrink to less than half; higher levels take up to four times as long for a tenth less.
_COMPRESSION: Final = 1
_FIELDS: Final[dict[type, tuple[str, ...] | None]] = {}
LIES: Final = "lies"
"""The one key of what stands for a trajectory."""


def frame(entry: Entry, *, named: Named = lambda trajectory: None) -> bytes:
    parts: list[bytes] = []
    head = json.dumps({type(entry).__name__: _Writer(parts, named).plain(entry)}, separators=(",", ":")).encode()
    body = b"".join((_LENGTH.pack(len(head)), head, *parts))
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def entry_of(body: bytes, *, found: Found) -> Entry:
    """`found`: the trajectory that something stands for."""
    [length] = _LENGTH.unpack_from(body)
    start = _LENGTH.size
    head, tail = body[start : start + length], memoryview(body)[start + length :]
    [(kind, content)] = json.loads(head).items()
    entry: Entry = _adapter(kind).validate_python(_read(content, tail, found))
    return entry


def frames(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Each body and where its frame ends, up to the first that is not whole."""
    at = 0
    while at + HEAD.size <= len(content):
        length, crc = HEAD.unpack_from(content, at)
        body = content[at + HEAD.size : at + HEAD.size + length]
        at += HEAD.size + length
        if len(body) < length or zlib.crc32(body) != crc:
            return
        yield body, at


def body_at(file: BinaryIO, at: int) -> bytes | None:
    """Of the frame that begins there; None if it is not whole."""
    file.seek(at)
    head = file.read(HEAD.size)
    content = head + file.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else head
    return next((body for body, _ in frames(content)), None)


class _Writer:
    def __init__(self, parts: list[bytes], named: Named) -> None:
        self._parts, self._named, self._at = parts, named, 0

    def plain(self, value: Any) -> Any:
        if isinstance(value, Packed):
            if isinstance(value, Floats):  # random but for their first byte
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
        if isinstance(value, Trajectory) and (lies := self._named(value)) is not None:
            return {LIES: lies}
        return {name: self.plain(getattr(value, name)) for name in names}

    def _put(self, what: str, data: bytes) -> object:
        self._parts.append(data)
        self._at += len(data)
        return {_BYTES: [what, self._at - len(data), len(data)]}


def _read(value: Any, tail: memoryview, found: Found) -> Any:
    if isinstance(value, list):
        return [_read(each, tail, found) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES}:
        what, at, length = value[_BYTES]
        data = tail[at : at + length]
        if what == "numbers":
            return bytes(data)
        return zlib.decompress(data) if what == "squeezed" else str(zlib.decompress(data), "utf-8", "surrogatepass")
    if value.keys() == {LIES}:
        return found(value[LIES])
    return {name: _read(each, tail, found) for name, each in value.items()}


def _names(kind: type) -> tuple[str, ...] | None:
    """Of a record's fields; None of what is no record."""
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None
    return _FIELDS[kind]


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[kind])
