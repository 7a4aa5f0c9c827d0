"""Other processes can map a file while it is held open, and cannot open it afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.weights.chunks import hold_copy
from engine.weights.open_file import OpenFile, map_path

READ = "import sys; from engine.weights.open_file import map_path; print(bytes(map_path(sys.argv[1], 5)).decode())"
WRITE = (
    "import sys; from engine.weights.open_file import map_path; map_path(sys.argv[1], 5, writable=True)[:] = b'there'"
)


def elsewhere(program: str, path: str) -> str:
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_another_process_maps_memory_without_a_name() -> None:
    file = hold_copy(b"hello")
    assert elsewhere(READ, file.path) == "hello"


def test_another_process_writes_what_this_one_reads() -> None:
    file = OpenFile.without_name(5)
    here = map_path(file.path, 5)
    elsewhere(WRITE, file.path)
    assert bytes(here) == b"there"


def test_held_file_can_be_mapped_after_its_unlink(tmp_path: Path) -> None:
    (tmp_path / "version").write_bytes(b"hello")
    file = OpenFile(os.open(tmp_path / "version", os.O_RDONLY))
    (tmp_path / "version").unlink()
    assert elsewhere(READ, file.path) == "hello"


def test_mapping_outlives_the_holder_but_the_path_does_not() -> None:
    file = hold_copy(b"hello")
    path, mapped = file.path, map_path(file.path, 5)
    del file
    with pytest.raises(FileNotFoundError):
        map_path(path, 5)
    assert bytes(mapped) == b"hello"
