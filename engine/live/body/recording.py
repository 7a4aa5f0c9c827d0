"""A recording of a brain's messages and decisions, which `python -m engine replay` repeats.

    first line     the brain's part, the job's spec, and its arguments
    then           {"now": …, "received": {"BatchWanted": {…}}, "decided": <digest of the effects>}

Invariants:
- data that only bodies read (weights, keys and values, a sample's text, any bytes) is left out: brains only pass it on;
- recording changes no decision: a line is written after the brain has decided.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args

from pydantic import TypeAdapter

from engine.pipeline.effects import Effect
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.message import Message
from engine.pipeline.packed import Bytes, Packed

_OPAQUE: Final = frozenset({"payload", "state", "reach", "process"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    now: float
    message: Message
    decided: str


class Recording:
    def __init__(self, file: Path, *, part: Address, built_with: Mapping[str, object]) -> None:
        """`built_with`: plain values from which `replaying` builds the same brain."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("w", encoding="utf-8")
        self._write({"part": str(part), "built_with": built_with})

    def note(self, now: float, message: Message, effects: Sequence[Effect]) -> None:
        self._write({"now": now, "received": {type(message).__name__: plain(message)}, "decided": digest(effects)})

    def _write(self, entry: object) -> None:
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._file.flush()


def read_recording(file: Path) -> tuple[Address, dict[str, Any], Iterator[Recorded]]:
    lines = file.open(encoding="utf-8")
    head = json.loads(next(lines))
    return Address.parse(head["part"]), head["built_with"], map(_parse, filter(str.strip, lines))


def digest(effects: Sequence[Effect]) -> str:
    document = json.dumps([[type(effect).__name__, plain(effect)] for effect in effects], sort_keys=True)
    return sha256(document.encode()).hexdigest()[:16]


def plain(value: object) -> Any:
    """The value in JSON types; opaque fields are null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: None if each.name in _OPAQUE else plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Bytes):
        return []
    if isinstance(value, tuple | list | Packed):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(plain(each), sort_keys=True) for each in value)
    return "" if isinstance(value, bytes) else value


def _parse(line: str) -> Recorded:
    entry = json.loads(line)
    [(kind, message)] = entry["received"].items()
    return Recorded(now=entry["now"], message=_adapter(kind).validate_python(message), decided=entry["decided"])


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter({each.__name__: each for each in _members(Message)}[kind])


def _members(kind: Any) -> Iterator[type]:
    if isinstance(kind, UnionType):
        for each in get_args(kind):
            yield from _members(each)
    else:
        yield kind
