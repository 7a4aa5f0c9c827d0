"""A node that turned hostile chooses what lies in a checkpoint's folder: nothing there leaks, blocks or fills."""

import hashlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from backend.checkpoints.downloads.export import tar_stream
from backend.checkpoints.files import CheckpointFiles, MissingPart, Unfinished, files_of
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.retention import CLAIM_LASTS, remove_files
from backend.checkpoints.services import GRACE, delete_checkpoint
from backend.checkpoints.verification import verify_due
from backend.jobs.models import Job
from backend.store import node_files
from backend.store.node_files import open_file, opened_folder, remove_folder
from engine.spec.checkpoint_manifest import CheckpointPart
from tests.backend.checkpoints.conftest import Save, folder_of, state_of

pytestmark = pytest.mark.django_db
TERABYTE = 2**40
EMPTY = CheckpointPart(num_bytes=0, sha256=hashlib.sha256(b"").hexdigest())


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTE)


def unix_socket(path: Path) -> None:
    """By a short name: an address of a socket holds 107 bytes."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "a socket": unix_socket,
    "a link to a secret": lambda path: path.symlink_to("/etc/passwd"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", [*KINDS, "a terabyte"])
def test_hostile_manifest_is_corrupt_and_read_no_further(kind: str, save: Save, now: datetime) -> None:
    checkpoint = save(5, is_verified=False)
    manifest = folder_of(checkpoint) / "manifest.json"
    manifest.unlink()
    (KINDS | {"a terabyte": sparse})[kind](manifest)
    assert verify_due(now=now) == 1
    checkpoint.refresh_from_db()
    wrong = "more than 4,194,304 bytes" if kind == "a terabyte" else "cannot be read"
    assert checkpoint.state == "corrupt" and wrong in checkpoint.message


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_part_is_corrupt_and_not_sent(kind: str, save: Save, now: datetime) -> None:
    """Before its verification, and after it."""
    for is_verified in (False, True):
        checkpoint = save(5 + is_verified, is_verified=is_verified)
        part = folder_of(checkpoint) / "config.json"
        part.unlink()
        KINDS[kind](part)
        if is_verified:
            with pytest.raises(MissingPart):
                list(tar_stream(checkpoint, files_of(checkpoint)))
        else:
            assert verify_due(now=now) == 1 and state_of(checkpoint) == "corrupt"


def test_empty_part_that_is_a_fifo_does_not_block(save: Save, now: datetime) -> None:
    """The size that a manifest promises of it is a FIFO's size."""
    files = files_of(save(5))
    os.mkfifo(folder_of(Checkpoint.objects.get()) / "empty")
    for look in (lambda: files.num_bytes("empty", EMPTY), lambda: list(files.chunks("empty", EMPTY))):
        with pytest.raises(MissingPart, match="not a regular file"):
            look()


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_folder_replaced_after_the_check_leads_nowhere(level: int, save: Save, make_job: Callable[..., Job]) -> None:
    """A node renames any folder of the way, and puts a link to another job's in its place."""
    theirs, mine = save(5, of=make_job()), save(5)
    files, kept = files_of(mine), sorted(folder_of(theirs).rglob("*"))
    ours, other = ([folder, *folder.parents][4 - level] for folder in (folder_of(mine), folder_of(theirs)))
    ours.rename(ours.with_name("aside"))
    ours.symlink_to(other)
    for look in (files.manifest, lambda: files.num_bytes("config.json", EMPTY), lambda: drain(files), files.remove):
        with pytest.raises((MissingPart, OSError)):
            look()
    assert sorted(folder_of(theirs).rglob("*")) == kept, "nothing of the other job is removed"


def drain(files: CheckpointFiles) -> None:
    list(files.chunks("config.json", EMPTY))


@contextmanager
def handle_of(folder: Path) -> Iterator[int]:
    with opened_folder(folder, ()) as handle:
        yield handle


@contextmanager
def dug(folder: Path, depth: int) -> Iterator[None]:
    """Folders within one another, deeper than any path or call stack is long: removed at the end by a program that can,
    for pytest's own removal of old folders cannot."""
    above = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def test_removal_of_deep_and_odd_entries_keeps_what_they_link_to(save: Save, now: datetime, tmp_path: Path) -> None:
    checkpoint, outside = save(1), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    folder = folder_of(checkpoint)
    for at, make in enumerate(KINDS.values()):
        make(folder / f"odd {at}")
    (folder / "away").symlink_to(outside)
    (folder / "hard link").hardlink_to(outside / "kept")
    delete_checkpoint(checkpoint.pk, actor="user:1", now=now)
    with dug(folder, 3_000):
        assert remove_files(now=now + GRACE) == 1
        assert state_of(checkpoint) == "deleted" and not folder.exists()
    assert (outside / "kept").read_text() == "kept"


def test_removal_of_very_many_entries_is_done_in_turns(
    save: Save, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save(1)
    folder = folder_of(checkpoint)
    for n in range(60):
        (folder / f"{n}").write_bytes(b"")
    (folder / "deeper").mkdir()
    for n in range(60):
        (folder / "deeper" / f"{n}").write_bytes(b"")
    delete_checkpoint(checkpoint.pk, actor="user:1", now=now)
    monkeypatch.setattr(node_files, "MOST_REMOVED", 50)
    left, at = [len(list(folder.rglob("*")))], now + GRACE
    while not remove_files(now=at):
        assert state_of(checkpoint) == "deleting" and not (folder / "manifest.json").exists()
        left.append(len(list(folder.rglob("*"))))
        assert 0 < left[-2] - left[-1] <= 50 + 1, "each turn removes a bounded number, and some"
        at += CLAIM_LASTS
    assert state_of(checkpoint) == "deleted" and not folder.exists() and len(left) > 2


def test_removal_ends_while_a_node_adds_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").mkdir()
    unlink = os.unlink

    def unlink_and_add(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        os.close(os.open(f"{name}+"[-20:], os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))

    (tmp_path / "full" / "x").write_bytes(b"")
    with handle_of(tmp_path) as handle, monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_and_add)
        assert not remove_folder(handle, "full", most=30)
    with handle_of(tmp_path) as handle:
        assert remove_folder(handle, "full") and remove_folder(handle, "full"), "a repeated removal is no error"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_name_that_leads_elsewhere_is_not_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("x")
    with pytest.raises(OSError, match="plain name"):
        open_file(tmp_path, [name])
    with pytest.raises(OSError, match="plain name"), opened_folder(tmp_path, [name]):
        pass
    with handle_of(tmp_path) as handle, pytest.raises(OSError, match="plain name"):
        remove_folder(handle, name)


def test_unfinished_removal_is_retried_like_a_failed_store() -> None:
    assert Unfinished.retryable
