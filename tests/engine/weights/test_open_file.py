"""A file that is held open can be had by others, and by nobody afterwards."""

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


def test_another_process_maps_what_never_had_a_name() -> None:
    file = hold_copy(b"hello")
    assert elsewhere(READ, file.path) == "hello"


def test_another_process_writes_what_this_one_reads() -> None:
    file = OpenFile.without_name(5)
    here = map_path(file.path, 5)
    elsewhere(WRITE, file.path)
    assert bytes(here) == b"there"


def test_a_name_may_go_while_the_file_is_held(tmp_path: Path) -> None:
    (tmp_path / "version").write_bytes(b"hello")
    file = OpenFile(os.open(tmp_path / "version", os.O_RDONLY))
    (tmp_path / "version").unlink()
    assert elsewhere(READ, file.path) == "hello"


def test_with_its_holder_it_is_gone_and_who_has_mapped_it_keeps_the_bytes() -> None:
    file = hold_copy(b"hello")
    path, mapped = file.path, map_path(file.path, 5)
    del file
    with pytest.raises(FileNotFoundError):
        map_path(path, 5)
    assert bytes(mapped) == b"hello"
