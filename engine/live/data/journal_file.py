"""Data's log on disk, synced before any record is acknowledged.

    00000001.journal   frame frame frame …
    00000002.journal   frame frame …            the records after the snapshot of the same number
    00000002.snapshot  [trajectories …] state   the state refers to each trajectory by file and offset

Invariants:
- `append` returns only after the bytes are on the disk, and waits for room if the disk is full; a frame half written
  when the process dies is cut off on reading, and was never acknowledged;
- a trajectory is written once: a snapshot stores only its offset;
- a thread of its own writes snapshots (`snapshots`); at every instant the newest complete snapshot and the journals
  from its number on hold the whole log.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from engine.live.data.frames import frame, frames
from engine.live.data.snapshots import JOURNAL, UNFINISHED, numbered, sync_folder, write_snapshot
from engine.live.data.trajectory_offsets import Offset, TrajectoryOffsets
from engine.pipeline.journal import DataSnapshot, Record, TrajectoryTaken
from engine.process.full_disk import append_through
from engine.process.progress import worker_progress


class JournalFile:
    def __init__(self, folder: Path) -> None:
        """Continues an existing log; cuts off a torn end."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for left_over in folder.glob(f"*{UNFINISHED}"):
            left_over.unlink()
        self._number = max(numbered(folder, JOURNAL), default=1)
        self._file = self._path.open("ab", buffering=0)
        self._file.truncate(_num_whole_bytes(self._path))
        sync_folder(folder)
        self._offsets = TrajectoryOffsets()
        self._snapshots = ThreadPoolExecutor(1, "snapshot", initializer=worker_progress().attach_thread)
        self._snapshot: Future[TrajectoryOffsets] | None = None

    def append(self, records: Sequence[Record]) -> None:
        self._merge_offsets()
        at = self._file.seek(0, os.SEEK_END)
        chunks: list[bytes] = []
        for record in records:
            data = frame(record)
            chunks.append(data)
            if isinstance(record, TrajectoryTaken):
                self._offsets.put(record.trajectory, Offset(file=self._path.name, at=at, num_bytes=len(data)))
            at += len(data)
        append_through(self._file, b"".join(chunks))

    def start_snapshot(self, snapshot: DataSnapshot) -> None:
        """Starts writing `snapshot`, the state with everything appended so far, and a new journal. No-op while an
        earlier snapshot is being written, which only makes the log longer."""
        self._merge_offsets()
        if self._snapshot is not None:
            return
        full, offsets = self._file, self._offsets
        self._number += 1
        self._file, self._offsets = self._path.open("ab", buffering=0), TrajectoryOffsets()
        sync_folder(self._folder)
        full.close()
        self._snapshot = self._snapshots.submit(write_snapshot, self._folder, self._number, snapshot, offsets)

    def finish_snapshot(self) -> None:
        """Waits for the snapshot that is being written."""
        if self._snapshot is not None:
            self._snapshot.result()

    def close(self) -> None:
        self.finish_snapshot()
        self._snapshots.shutdown()
        self._file.close()

    def _merge_offsets(self) -> None:
        """Merges the offsets of a finished snapshot. Raises the error that a snapshot failed with."""
        if self._snapshot is not None and self._snapshot.done():
            self._offsets.take_over(self._snapshot.result())
            self._snapshot = None

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._number:08d}{JOURNAL}"


def _num_whole_bytes(file: Path) -> int:
    with file.open("rb") as content:
        return max((end for _, end in frames(content)), default=0)
