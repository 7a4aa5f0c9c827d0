"""Snapshots of data, written on a thread of their own: the state, and the offsets of its trajectories.

Invariants:
- a snapshot gets its name only when all of it is on the disk; files that it makes obsolete are deleted after that;
- trajectories in a file of which little is still needed are written again, so the log stays within a small multiple of
  its live content.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Final

from engine.live.data.frames import frame
from engine.live.data.trajectory_offsets import Offset, TrajectoryOffsets
from engine.pipeline.journal import DataSnapshot
from engine.pipeline.records import Trajectory
from engine.policy.progress import SLOWEST_SYNC_S
from engine.process.progress import working

JOURNAL: Final = ".journal"
SNAPSHOT: Final = ".snapshot"
UNFINISHED: Final = ".new"
# Live content below this fraction of its file is written again: the log is at most four times its live content.
WORTH_ITS_FILE: Final = 0.25


def write_snapshot(folder: Path, number: int, snapshot: DataSnapshot, offsets: TrajectoryOffsets) -> TrajectoryOffsets:
    """Returns the new offsets of its trajectories. `number`: of the journal that follows the snapshot."""
    file = folder / f"{number:08d}{SNAPSHOT}"
    unfinished = file.with_suffix(UNFINISHED)
    sparse = _find_sparse_files(folder, snapshot, offsets)
    kept = TrajectoryOffsets()
    with unfinished.open("wb") as output:
        for trajectory in trajectories_of(snapshot):
            offset = offsets.of(trajectory)
            if offset is None or offset.file in sparse:
                data, at = frame(trajectory), output.tell()
                with working("log", constant_s=SLOWEST_SYNC_S):
                    output.write(data)
                offset = Offset(file=file.name, at=at, num_bytes=len(data))
            kept.put(trajectory, offset)
        state = frame(snapshot, referred=lambda trajectory: _as_json(kept.of(trajectory)))
        with working("log", constant_s=SLOWEST_SYNC_S):
            output.write(state)
            output.flush()
            os.fsync(output.fileno())
    with working("log", constant_s=SLOWEST_SYNC_S):
        unfinished.rename(file)
        sync_folder(folder)
        _delete_obsolete(folder, number, {offset.file for offset in kept})
    return kept


def trajectories_of(value: object) -> Iterator[Trajectory]:
    if isinstance(value, Trajectory):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from trajectories_of(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from trajectories_of(getattr(value, field.name))


def numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """The files by their numbers, in rising order."""
    files = folder.glob(f"*{suffix}") if folder.is_dir() else ()
    return {int(file.stem): file for file in sorted(files)}


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_json(offset: Offset | None) -> object:
    assert offset is not None, "every trajectory has an offset before the state is written"
    return [offset.file, offset.at]


def _find_sparse_files(folder: Path, snapshot: DataSnapshot, offsets: TrajectoryOffsets) -> set[str]:
    needed: Counter[str] = Counter()
    for trajectory in trajectories_of(snapshot):
        offset = offsets.of(trajectory)
        if offset is not None:
            needed[offset.file] += offset.num_bytes
    return {name for name, size in needed.items() if size < WORTH_ITS_FILE * (folder / name).stat().st_size}


def _delete_obsolete(folder: Path, number: int, needed: set[str]) -> None:
    for suffix in (JOURNAL, SNAPSHOT):
        for earlier, file in numbered(folder, suffix).items():
            if earlier < number and file.name not in needed:
                file.unlink()
