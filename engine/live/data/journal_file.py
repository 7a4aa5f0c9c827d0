"""Data's log on disk, synced before anybody is told that it is kept.

    00000001.journal   frame frame frame …
    00000002.journal   frame frame …            what came after the snapshot of the same number
    00000002.snapshot  [trajectories …] state   the state says in which file each of its trajectories lies

Invariants:
- `append` returns only after the bytes are on the disk, and on a full one waits for room; a frame half written when the
  process dies is cut off on reading, and was promised to nobody;
- a trajectory is written once: a snapshot says where it lies, and costs no more than that;
- a snapshot is written beside, by a thread of its own (`snapshots`); at every instant the newest that is whole, and the
  journals from its number on, tell all.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.full_disk import append_through
from engine.live.data.frames import frame, frames
from engine.live.data.places import Place, Places
from engine.live.data.snapshots import JOURNAL, UNFINISHED, numbered, sync_folder, write_snapshot
from engine.pipeline.journal import DataSnapshot, Record, TrajectoryTaken
from engine.signs import signs_beside


class JournalFile:
    def __init__(self, folder: Path) -> None:
        """Goes on behind what is there; a torn end is cut off."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"*{UNFINISHED}"):
            left_over.unlink()
        self._number = max(numbered(folder, JOURNAL), default=1)
        self._file = self._path.open("ab", buffering=0)
        self._file.truncate(_num_whole_bytes(self._path))
        sync_folder(folder)
        self._places = Places()
        self._beside = ThreadPoolExecutor(1, "snapshot", initializer=signs_beside().hear_this_thread)
        self._snapshot: Future[Places] | None = None

    def append(self, records: Sequence[Record]) -> None:
        self._take_over()
        at = self._file.seek(0, os.SEEK_END)
        written: list[bytes] = []
        for record in records:
            data = frame(record)
            written.append(data)
            if isinstance(record, TrajectoryTaken):
                self._places.put(record.trajectory, Place(file=self._path.name, at=at, num_bytes=len(data)))
            at += len(data)
        append_through(self._file, b"".join(written))

    def begin_anew(self, snapshot: DataSnapshot) -> None:
        """`snapshot`: the state with everything appended so far. While the one before is still being written none is
        begun, which only makes the log longer."""
        self._take_over()
        if self._snapshot is not None:
            return
        full, places = self._file, self._places
        self._number += 1
        self._file, self._places = self._path.open("ab", buffering=0), Places()
        sync_folder(self._folder)
        full.close()
        self._snapshot = self._beside.submit(write_snapshot, self._folder, self._number, snapshot, places)

    def finish_snapshot(self) -> None:
        """Waits for the one that is being written."""
        if self._snapshot is not None:
            self._snapshot.result()

    def close(self) -> None:
        self.finish_snapshot()
        self._beside.shutdown()
        self._file.close()

    def _take_over(self) -> None:
        """What a snapshot that is done knows of its trajectories. What it failed with, this fails with."""
        if self._snapshot is not None and self._snapshot.done():
            self._places.take_over(self._snapshot.result())
            self._snapshot = None

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number:08d}{JOURNAL}"


def _num_whole_bytes(file: Path) -> int:
    return max((end for _, end in frames(file.read_bytes())), default=0)
