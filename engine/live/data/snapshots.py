"""Snapshots of data, written beside its thread: the state, and of its trajectories only where they lie.

Invariants:
- a snapshot has its name only when all of it is on the disk, and what it makes needless is deleted only after that;
- a file of which little is needed any more is not kept for that: it is written again, so that the log is never much
  longer than what it must tell.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Final

from engine.live.data.frames import frame
from engine.live.data.places import Place, Places
from engine.pipeline.journal import DataSnapshot
from engine.pipeline.records import Trajectory
from engine.policy.progress import SLOWEST_SYNC_S
from engine.signs import at_work

JOURNAL: Final = ".journal"
SNAPSHOT: Final = ".snapshot"
UNFINISHED: Final = ".new"
# What is less than this part of its file is written again: the log is at most four times what it must tell.
WORTH_ITS_FILE: Final = 0.25


def write_snapshot(folder: Path, number: int, snapshot: DataSnapshot, places: Places) -> Places:
    """Where its trajectories lie now. `number`: of the journal that follows it."""
    file = folder / f"{number:08d}{SNAPSHOT}"
    unfinished = file.with_suffix(UNFINISHED)
    worn = _worn(folder, snapshot, places)
    kept = Places()
    with unfinished.open("wb") as written:
        for trajectory in trajectories_of(snapshot):
            place = places.of(trajectory)
            if place is None or place.file in worn:
                data, at = frame(trajectory), written.tell()
                with at_work("log", constant_s=SLOWEST_SYNC_S):
                    written.write(data)
                place = Place(file=file.name, at=at, num_bytes=len(data))
            kept.put(trajectory, place)
        state = frame(snapshot, named=lambda trajectory: _where(kept.of(trajectory)))
        with at_work("log", constant_s=SLOWEST_SYNC_S):
            written.write(state)
            written.flush()
            os.fsync(written.fileno())
    with at_work("log", constant_s=SLOWEST_SYNC_S):
        unfinished.rename(file)
        sync_folder(folder)
        _delete_needless(folder, number, {place.file for place in kept})
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
    """By their numbers, which rise."""
    found = folder.glob(f"*{suffix}") if folder.is_dir() else ()
    return {int(file.stem): file for file in sorted(found)}


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _where(place: Place | None) -> object:
    assert place is not None, "each was put before the state was written"
    return [place.file, place.at]


def _worn(folder: Path, snapshot: DataSnapshot, places: Places) -> set[str]:
    needed: Counter[str] = Counter()
    for trajectory in trajectories_of(snapshot):
        place = places.of(trajectory)
        if place is not None:
            needed[place.file] += place.num_bytes
    return {name for name, size in needed.items() if size < WORTH_ITS_FILE * (folder / name).stat().st_size}


def _delete_needless(folder: Path, number: int, needed: set[str]) -> None:
    for suffix in (JOURNAL, SNAPSHOT):
        for earlier, file in numbered(folder, suffix).items():
            if earlier < number and file.name not in needed:
                file.unlink()
