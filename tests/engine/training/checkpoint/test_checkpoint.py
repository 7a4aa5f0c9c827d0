"""A folder is a checkpoint only if it has a manifest and every byte matches it."""

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


def test_written_checkpoint_verifies_to_its_manifests_hash(tmp_path: Path) -> None:
    digest = write_demo(tmp_path / "new" / "folder")
    assert verify_checkpoint(tmp_path / "new" / "folder") == digest
    assert digest == sha256((tmp_path / "new" / "folder" / MANIFEST_FILE).read_bytes()).hexdigest()
    assert checkpoint_num_bytes(tmp_path / "new" / "folder") == 204
    names = {str(file.relative_to(tmp_path / "new/folder")) for file in (tmp_path / "new/folder").rglob("*.*")}
    assert names == {*CONTENTS, MANIFEST_FILE}


@settings(max_examples=40)  # every example syncs to disk
@given(st.sampled_from(["weights.bin", "trainer.json", MANIFEST_FILE]), st.integers(0, 10_000), st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, name: str, position: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    digest = write_demo(folder)
    content = bytearray((folder / name).read_bytes())
    content[position % len(content)] ^= 1 << bit
    (folder / name).write_bytes(content)
    try:
        assert verify_checkpoint(folder) != digest  # white space in the manifest: another manifest, the same parts
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
    """Even if the folder held an older checkpoint."""
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
def test_manifest_cannot_name_files_outside_its_folder(tmp_path: Path, name: str) -> None:
    write_demo(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    manifest["parts"][name] = manifest["parts"]["trainer.json"]
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointUnverified, match="not a manifest"):
        verify_checkpoint(tmp_path)
