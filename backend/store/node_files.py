"""Files in folders that Ray nodes write: the owner of a node chooses every name, kind and size there.

Invariants:
- every folder and file is opened relative to the folder above it, and no link is followed: a folder that is
  replaced between a check and its use leads to no other place;
- only regular files are opened, and opening never waits: a FIFO, a device or a socket is refused;
- removal holds two handles, however deep the folders are, and ends after `MOST_REMOVED` entries; the next call
  continues.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Final

MOST_REMOVED: Final = 10_000
"""Ten seconds on a network file system; a checkpoint has some hundred files at most."""
_AT_ONCE: Final = 1_000
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened_folder(root: Path, names: Sequence[str]) -> Iterator[int]:
    """The handle of the folder `names` below `root`, which is trusted. Raises `OSError`."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            below = os.open(_plain(name), _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_file(root: Path, names: Sequence[str]) -> BinaryIO:
    """The regular file `names` below `root`, which is trusted. Raises `OSError`."""
    with opened_folder(root, names[:-1]) as folder:
        file = os.fdopen(os.open(_plain(names[-1]), _FILE, dir_fd=folder), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file")
    return file


def remove_folder(folder: int, name: str, *, most: int | None = None) -> bool:
    """Removes `name`, below an open folder, with all that it contains. False: more is left than one call removes.
    Raises `OSError`."""
    try:
        top = os.open(_plain(name), _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return True
    try:
        left = MOST_REMOVED if most is None else most
        while left > 0:
            num_done = _remove_entries(top, top, left)
            if not num_done:
                os.rmdir(name, dir_fd=folder)
                return True
            left -= num_done
    finally:
        os.close(top)
    return False


def _remove_entries(folder: int, top: int, most: int) -> int:
    """Removes entries of `folder`, or moves its folders up to `top`, where they are emptied later: so depth costs
    nothing. Returns the number of steps, at least one if there was any entry."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, min(most, _AT_ONCE))]
    num_done = 0
    for name in names:
        num_done += 1
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            continue
        except IsADirectoryError:
            if folder == top:
                num_done += _remove_inner(name, top, max(0, most - num_done))
            else:
                os.rename(name, token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
        if num_done >= most:
            break
    return num_done


def _remove_inner(name: str, top: int, most: int) -> int:
    inner = os.open(name, _FOLDER, dir_fd=top)
    try:
        num_done = _remove_entries(inner, top, most)
    finally:
        os.close(inner)
    with suppress(OSError):  # more is left in it
        os.rmdir(name, dir_fd=top)
    return num_done


def _plain(name: str) -> str:
    """Raises `OSError` for a name that leads to another folder."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not a plain name")
    return name
