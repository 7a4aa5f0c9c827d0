"""Checks free space on the disks of the site and of the store, and the database's size."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg

from backend.disks import Room, room_at
from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.site_notices import LEAST_FREE_BYTES

_PATIENCE_S: Final = 3
_LOW: Final = 0.1  # of a disk: leaves enough time to act

FULL = Fault(
    name="disk.full",
    cure="Free space or enlarge the disk: shorter LAMINAR_KEEP_…_DAYS, fewer checkpoints kept. Jobs wait until then.",
)
LOW = Fault(
    name="disk.low",
    verdict=Verdict.WARNING,
    cure="Free space or enlarge the disk before it is full: shorter LAMINAR_KEEP_…_DAYS, fewer checkpoints kept.",
)
AWAY = Fault(name="disk.away", cure="Create the folder, owned by the user of these processes, or mount its volume.")
SILENT = Fault(
    name="disk.silent",
    cure="Bring its file server or its disk back; everything that needs the folder hangs until then. If the server is "
    "gone for good: `umount -f -l` the folder, mount its new volume, restart the processes.",
)


def check_disks(environment: Environment) -> Iterator[Finding]:
    for name, folder in (("LAMINAR_SITE_DIR", environment.site_dir), ("LAMINAR_STORE_DIR", environment.store_dir)):
        yield _check_folder(name, folder)
    try:
        with psycopg.connect(environment.database_url, connect_timeout=_PATIENCE_S) as db:
            row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    except psycopg.Error:
        return  # reported by the check of Postgres
    yield good(f"the database takes {(row[0] if row else 0) / 1e9:.2f} GB of its own disk, which this check cannot see")


def _check_folder(name: str, folder: Path) -> Finding:
    place = f"{name}={folder}"
    try:
        heard = room_at(folder)
    except OSError as error:
        return AWAY.found(f"{place}: {error.strerror or type(error).__name__}")
    room = heard.last
    if heard.silent_s is not None:
        text = f"{place} has not responded since {_format_time(heard.silent_s)}"
        return SILENT.found(f"{text}; {_format_free(room)} at {_format_time(heard.age_s)}" if room else text)
    if room is None or not room.may_write:
        return AWAY.found(f"{place} is not a folder that this user can write to")
    text = f"{_format_free(room)} at {place}"
    if room.free_bytes < LEAST_FREE_BYTES:
        return FULL.found(text)
    return LOW.found(text) if room.free_bytes < _LOW * room.num_bytes else good(text)


def _format_free(room: Room) -> str:
    return f"{room.free_bytes / 1e9:.1f} of {room.num_bytes / 1e9:.1f} GB are free"


def _format_time(seconds: float) -> str:
    return f"{datetime.now(UTC) - timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S} UTC"
