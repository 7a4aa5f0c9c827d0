"""A file of facts, one JSON line each, numbered from the first fact's number on.

Invariants:
- a fact is on disk (fsync) when `append` returns, and its line never changes; on a full disk `append` waits for room;
- a crash in the middle of a line loses that line only: it is cut off when the file is opened for writing again, and the
  next fact gets its number, which is safe as the lost fact was never sent.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from engine.process.full_disk import append_through
from engine.spec.facts import Fact, FactBody, needs_of


def utc_now() -> datetime:
    return datetime.now(UTC)


class SegmentWriter:
    def __init__(self, path: Path, *, first_seq: int, now: Callable[[], datetime] = utc_now) -> None:
        self._now = now
        self._file = path.open("ab", buffering=0)
        num_lines, self.num_bytes = _whole_lines(path)
        if self.num_bytes != path.stat().st_size:
            self._file.truncate(self.num_bytes)
        sync_folder(path.parent)  # otherwise a power cut could remove a new file with its facts
        self.last_seq = first_seq - 1 + num_lines

    def append(self, body: FactBody) -> Fact:
        fact = Fact(seq=self.last_seq + 1, at=self._now(), body=body, needs=needs_of(body))
        line = fact.model_dump_json().encode() + b"\n"
        try:
            append_through(self._file, line)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self.num_bytes)  # otherwise the next fact would continue a partial line
            raise
        self.last_seq = fact.seq
        self.num_bytes += len(line)
        return fact

    def close(self) -> None:
        self._file.close()


def _whole_lines(path: Path) -> tuple[int, int]:
    """The number of complete lines, and their bytes."""
    num_lines = num_bytes = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            num_lines += 1
            num_bytes += len(line)
    return num_lines, num_bytes


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
