"""An append to a full disk waits for room and is written exactly once."""

import errno
import os
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from engine.process import full_disk
from engine.process.full_disk import WAITS_S, append_through


class SmallDisk(FileIO):
    """A disk with `room` bytes left."""

    room = 0

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        taken = min(len(data), self.room)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return super().write(bytes(data[:taken])) or 0


def ticking() -> Callable[[], float]:
    times: Iterator[float] = iter(float(second) for second in range(10**6))
    return lambda: next(times)


def test_half_a_line_is_completed_when_there_is_room_again(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "facts", "ab")
    disk.room = 7
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        disk.room += 3 * (len(waited) > 2)

    append_through(disk, b"one line\nanother\n", clock=ticking(), sleep=sleep)
    assert (tmp_path / "facts").read_bytes() == b"one line\nanother\n"
    assert len(waited) > 3


def test_wait_is_bounded(tmp_path: Path) -> None:
    waited: list[float] = []
    with pytest.raises(OSError, match="No space left"):
        append_through(SmallDisk(tmp_path / "facts", "ab"), b"x", clock=ticking(), sleep=waited.append)
    assert len(waited) == WAITS_S


def test_other_error_is_raised_at_once(tmp_path: Path) -> None:
    file = FileIO(tmp_path / "facts", "ab")
    file.close()
    with pytest.raises(ValueError, match="closed"):
        append_through(file, b"x")


def test_kernel_full_device_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "WAITS_S", 0.0)
    with Path("/dev/full").open("ab", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        append_through(full, b"x", sleep=lambda seconds: None)
