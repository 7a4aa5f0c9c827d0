"""A folder is a checkpoint only when its manifest is there and every byte is what it says."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.training.checkpoint.folder import (
    MANIFEST_FILE,
    CheckpointUnverified,
    WritePart,
    checkpoint_num_bytes,
    verify_checkpoint,
    write_checkpoint,
)

CONTENTS = {"weights.bin": b"0123456789" * 20, "adapter/config.json": b"[]", "trainer.json": b"{}"}


def write_demo(folder: Path) -> str:
    return write_checkpoint(folder, {name: writer(content) for name, content in CONTENTS.items()})


def writer(content: bytes) -> WritePart:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def test_what_was_written_verifies_to_the_hash_of_its_manifest(tmp_path: Path) -> None:
    told = write_demo(tmp_path / "new" / "folder")
    assert verify_checkpoint(tmp_path / "new" / "folder") == told
    assert told == sha256((tmp_path / "new" / "folder" / MANIFEST_FILE).read_bytes()).hexdigest()
    assert checkpoint_num_bytes(tmp_path / "new" / "folder") == 204
    found = {str(file.relative_to(tmp_path / "new/folder")) for file in (tmp_path / "new/folder").rglob("*.*")}
    assert found == {*CONTENTS, MANIFEST_FILE}


@settings(max_examples=40)  # every example syncs to disk
@given(st.sampled_from(["weights.bin", "trainer.json", MANIFEST_FILE]), st.integers(0, 10_000), st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, name: str, position: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    told = write_demo(folder)
    content = bytearray((folder / name).read_bytes())
    content[position % len(content)] ^= 1 << bit
    (folder / name).write_bytes(content)
    try:
        assert verify_checkpoint(folder) != told  # white space in the manifest: another manifest, the same parts
        assert name == MANIFEST_FILE
    except CheckpointUnverified:
        pass


@pytest.mark.parametrize("name", [*CONTENTS, MANIFEST_FILE])
def test_a_missing_or_cut_file_is_noticed(tmp_path: Path, name: str) -> None:
    write_demo(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(CheckpointUnverified):
        verify_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointUnverified, match="cannot be read"):
        verify_checkpoint(tmp_path)


@pytest.mark.parametrize("crash_at", range(3))
def test_a_crash_while_writing_leaves_nothing_that_verifies(tmp_path: Path, crash_at: int) -> None:
    """Not even when an older checkpoint was in that folder."""
    write_demo(tmp_path)

    def crash(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError("disk full")

    parts = [(name, writer(content)) for name, content in CONTENTS.items()]
    parts.insert(crash_at, ("third.bin", crash))
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path, dict(parts))
    with pytest.raises(CheckpointUnverified):
        verify_checkpoint(tmp_path)
    assert write_demo(tmp_path) == verify_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "adapter/../../outside", "a/b/c", "./x", "adapter/"])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    write_demo(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    manifest["parts"][name] = manifest["parts"]["trainer.json"]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointUnverified, match="not a manifest"):
        verify_checkpoint(tmp_path)
