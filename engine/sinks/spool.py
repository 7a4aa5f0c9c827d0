"""The spool: facts of one attempt on disk, one JSON line each, numbered 1, 2, 3, …

Invariants:
- a fact is on disk (fsync) when `append` returns, and its line is never changed; on a full disk it waits for room;
- a crash in the middle of a line loses that line only: it is cut off when the spool is opened again, and its number
  is given to the next fact, which is right because nobody has seen it;
- memory does not grow with the run: only a place in the file is remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from engine.full_disk import append_through
from engine.spec.facts import Fact, FactBody


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place behind this fact in the file."""

    seq: int
    offset: int


START = Place(seq=0, offset=0)


class Spool:
    """The spool of one attempt. One thread appends, one reads."""

    def __init__(self, path: Path, *, now: Callable[[], datetime] = utc_now) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._now = now
        self._file = path.open("ab", buffering=0)
        end = _last_whole_line(path)
        if end.offset != path.stat().st_size:
            self._file.truncate(end.offset)
        self._last_seq = end.seq
        self._read_to = START

    @property
    def last_seq(self) -> int:
        return self._last_seq

    def append(self, body: FactBody) -> Fact:
        fact = Fact(seq=self._last_seq + 1, at=self._now(), body=body)
        append_through(self._file, fact.model_dump_json().encode() + b"\n")
        self._last_seq = fact.seq
        return fact

    def lines_after(self, seq: int, *, max_facts: int, max_bytes: int) -> list[bytes]:
        """Facts seq + 1, seq + 2, … as JSON; always one if there is one, then as many as fit."""
        lines: list[bytes] = []
        num_bytes = 0
        with self._path.open("rb") as file:
            place = self._seek(file, seq)
            while len(lines) < max_facts and place.seq < self._last_seq:
                line = file.readline()
                if lines and num_bytes + len(line) > max_bytes:
                    break
                num_bytes += len(line)
                lines.append(line.rstrip(b"\n"))
                place = Place(seq=place.seq + 1, offset=place.offset + len(line))
        return lines

    def _seek(self, file: BinaryIO, seq: int) -> Place:
        """Facts are read in order, so the place of the last call is nearly always the right one to start from."""
        place = self._read_to if self._read_to.seq <= seq else START
        file.seek(place.offset)
        while place.seq < seq:
            place = Place(seq=place.seq + 1, offset=place.offset + len(file.readline()))
        self._read_to = place
        return place

    def close(self) -> None:
        self._file.close()


def _last_whole_line(path: Path) -> Place:
    place = START
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = Place(seq=place.seq + 1, offset=place.offset + len(line))
    return place
