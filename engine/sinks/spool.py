"""The spool: facts of one attempt on disk, numbered 1, 2, 3, …, in segments of about 64 MB.

    facts/000000000001.jsonl   discarded first: acknowledged, and enough acknowledged facts follow
    facts/000000004711.jsonl   kept, for a control plane whose database is restored from a backup
    facts/000000009001.jsonl   being written

Invariants:
- a fact is on disk when `append` returns; half a line that a crash left is cut off (`segments.py`);
- a segment is discarded only if all of it was acknowledged as stored, and at least `kept_bytes` of whole segments after
  it were too: a fact that was not acknowledged is never discarded, however many there are;
- segments are opened at the end and discarded from the front, and a segment's number is in its name. So a crash between
  the two leaves one segment more than needed, and neither a hole nor a fact twice;
- neither memory nor what is read at once grows with the run: at most one segment.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import BinaryIO, Final

from engine.process.full_disk import NO_ROOM
from engine.sinks.segments import SegmentWriter, sync_folder, utc_now
from engine.spec.fact_segments import first_seqs, segment_name
from engine.spec.facts import Fact, FactBody

log = logging.getLogger(__name__)

SEGMENT_BYTES: Final = 64 * 2**20  # read when a driver starts again, and some hundred files at most
# Acknowledged facts that a restored database can ask for again: 29 hours of 200 kB a second, the most that a job's
# facts may take. So a backup of last night is young enough.
KEPT_BYTES: Final = 20 * 2**30


class NotInSpool(LookupError):
    """A fact is wanted that the spool does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that is complete: facts `first` to `last`."""

    first: int
    last: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place behind fact `seq` in the segment that begins with fact `first`."""

    first: int
    seq: int
    offset: int


class Spool:
    """The spool of one attempt. One thread appends; another one reads and discards."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime] = utc_now,
        segment_bytes: int = SEGMENT_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)  # or a power cut could take the folder away, with every fact in it
        self._folder, self._now = folder, now
        self._segment_bytes, self._kept_bytes = segment_bytes, kept_bytes
        firsts = first_seqs(folder) or [1]
        self._lock = threading.Lock()  # of the next two: one thread rotates, the other one reads and discards
        self._complete = [
            Segment(first=first, last=following - 1, num_bytes=self._path(first).stat().st_size)
            for first, following in pairwise(firsts)
        ]
        self._open_first = firsts[-1]
        self._writer = self._opened(self._open_first)
        self._last_seq = self._writer.last_seq
        self._read_to = Place(first=0, seq=0, offset=0)

    @property
    def last_seq(self) -> int:
        return self._last_seq

    def append(self, body: FactBody) -> Fact:
        if self._writer.num_bytes >= self._segment_bytes:
            self._rotate()
        fact = self._writer.append(body)
        self._last_seq = fact.seq
        return fact

    def lines_after(self, seq: int, *, max_facts: int, max_bytes: int) -> list[bytes]:
        """Facts seq + 1, seq + 2, … as JSON; always one if there is one, then as many as fit. Raises `NotInSpool`."""
        lines: list[bytes] = []
        num_bytes = 0
        try:
            for line in islice(self._lines_after(seq), max_facts):
                if lines and num_bytes + len(line) > max_bytes:
                    break
                num_bytes += len(line)
                lines.append(line.rstrip(b"\n"))
        except NotInSpool:
            if not lines:
                raise
        return lines

    def discard(self, acked: int) -> None:
        """Removes the oldest segments that nobody needs, once all facts up to `acked` are stored elsewhere."""
        with self._lock:
            acknowledged = [segment for segment in self._complete if segment.last <= acked]
        num_bytes = sum(segment.num_bytes for segment in acknowledged)
        for segment in acknowledged:  # the oldest first, so that a crash leaves no hole
            num_bytes -= segment.num_bytes
            if num_bytes < self._kept_bytes:
                return
            try:
                self._path(segment.first).unlink(missing_ok=True)
            except OSError as error:  # the next driver of this attempt tries again
                log.warning("segment not removed file=%s error=%s", self._path(segment.first), error)
            with self._lock:
                self._complete.remove(segment)

    def close(self) -> None:
        self._writer.close()

    def _rotate(self) -> None:
        complete = Segment(first=self._open_first, last=self._last_seq, num_bytes=self._writer.num_bytes)
        try:
            following = self._opened(complete.last + 1)
        except OSError as error:
            self._path(complete.last + 1).unlink(missing_ok=True)
            if error.errno not in NO_ROOM:
                raise
            return  # the segment grows meanwhile, and its append waits for room
        self._writer.close()
        self._writer = following
        with self._lock:
            self._complete.append(complete)
            self._open_first = complete.last + 1

    def _opened(self, first: int) -> SegmentWriter:
        return SegmentWriter(self._path(first), first_seq=first, now=self._now)

    def _path(self, first: int) -> Path:
        return self._folder / segment_name(first)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _lines_after(self, seq: int) -> Iterator[bytes]:
        last_seq = self._last_seq  # before the list: a segment is listed before its first fact counts
        with self._lock:
            segments = [*self._complete, Segment(first=self._open_first, last=last_seq, num_bytes=0)]
        while seq < last_seq:
            segment = next((each for each in reversed(segments) if each.first <= seq + 1), None)
            if segment is None:
                raise NotInSpool(f"fact {seq + 1} is not kept, the oldest that is kept is {segments[0].first}")
            with self._path(segment.first).open("rb") as file:
                self._read_to = place = self._seek(file, segment, seq)
                while place.seq < min(segment.last, last_seq):
                    line = file.readline()
                    place = _behind(place, line)
                    yield line
            seq = place.seq

    def _seek(self, file: BinaryIO, segment: Segment, seq: int) -> Place:
        """Facts are read in order, so the place of the last call is nearly always the right one to start from."""
        place = self._read_to
        if place.first != segment.first or place.seq > seq:
            place = Place(first=segment.first, seq=segment.first - 1, offset=0)
        file.seek(place.offset)
        while place.seq < seq:
            place = _behind(place, file.readline())
        return place


def _behind(place: Place, line: bytes) -> Place:
    """Raises `NotInSpool` at the end of a file that a restore of files has put back as it was when half written."""
    if not line.endswith(b"\n"):
        raise NotInSpool(
            f"fact {place.seq + 1} is not kept: the segment that begins with {place.first} is not complete"
        )
    return Place(first=place.first, seq=place.seq + 1, offset=place.offset + len(line))
