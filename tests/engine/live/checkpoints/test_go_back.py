"""A restarted trainer goes back to the newest intact checkpoint, and never forward to another one."""

import shutil
from pathlib import Path

import pytest

from engine.live.checkpoints.resuming import (
    PASSED_OVER_FILE,
    ResumePoint,
    finish_checkpoint,
    forget_older,
    go_back,
    open_checkpoint,
)
from engine.pipeline.records import DataProgress
from engine.training.checkpoint.folder import MANIFEST_FILE, CheckpointUnverified, verify_checkpoint, write_checkpoint

PROGRESS = DataProgress(ended=((0, 4),), ledger=(("trained", 16),))


def saved(root: Path, step: int) -> Path:
    folder = root / f"step-{step:06d}"
    write_checkpoint(folder, {"weights.bin": lambda file: _write(file, f"weights of {step}")})
    finish_checkpoint(folder, step=step, progress=PROGRESS)
    return folder


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def step_of(root: Path, *, reported: int = 10) -> int | None:
    """The step from which a loader that reads everything resumes."""
    point = go_back(root, load, reported=reported)
    return None if point is None else point.step


def load(point: ResumePoint) -> None:
    verify_checkpoint(point.folder)


def test_newest_intact_checkpoint_is_loaded(tmp_path: Path) -> None:
    assert step_of(tmp_path) is None
    saved(tmp_path, 2)
    saved(tmp_path, 10)
    assert step_of(tmp_path) == 10


def test_unfinished_checkpoint_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (saved(tmp_path, 4) / MANIFEST_FILE).unlink()
    assert step_of(tmp_path) == step_of(tmp_path) == 2


def test_checkpoint_unknown_to_driver_is_passed_over_for_good(tmp_path: Path) -> None:
    """The steps before it were not reported either: they are trained and reported again."""
    for step in (2, 4, 6):
        saved(tmp_path, step)
    assert step_of(tmp_path, reported=4) == 4
    assert step_of(tmp_path, reported=6) == 4, "weights trained since do not descend from step 6"
    assert step_of(tmp_path, reported=0) is None


def test_passed_over_checkpoint_stays_out_when_bytes_return(tmp_path: Path) -> None:
    """A disk fails to read for a moment. By the next time, newer weights descend from the checkpoint before."""
    saved(tmp_path, 2)
    weights = saved(tmp_path, 4) / "weights.bin"
    away = shutil.move(weights, tmp_path / "away")
    assert step_of(tmp_path) == 2
    shutil.move(away, weights)
    assert step_of(tmp_path) == 2
    assert (tmp_path / "step-000004" / PASSED_OVER_FILE).exists(), "an operator can still restore it by hand"
    saved(tmp_path, 4)
    assert step_of(tmp_path) == 4


def test_choosing_reads_no_weights_and_loading_finds_damage(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    newest = saved(tmp_path, 4)
    (newest / "weights.bin").write_text("Weights of 4")
    assert open_checkpoint(str(newest)).step == 4, "the size is right, and opening does not read the content"
    with pytest.raises(CheckpointUnverified, match=r"weights\.bin has 12 bytes with sha256"):
        load(open_checkpoint(str(newest)))
    assert step_of(tmp_path) == 2
    assert (newest / PASSED_OVER_FILE).exists()


@pytest.mark.parametrize("part", ["weights.bin", "progress/progress.json"])
def test_short_or_missing_file_is_detected_before_loading(tmp_path: Path, part: str) -> None:
    newest = saved(tmp_path, 4)
    (newest / part).write_text("w")
    with pytest.raises(CheckpointUnverified, match=rf"{Path(part).name} has 1 bytes"):
        open_checkpoint(str(newest))
    (newest / part).unlink()
    with pytest.raises(CheckpointUnverified, match=rf"{Path(part).name} cannot be read"):
        open_checkpoint(str(newest))


def test_second_kept_checkpoint_can_be_resumed_from(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (saved(tmp_path, 3) / "weights.bin").write_text("rotten")
    assert step_of(tmp_path) == 2
    newest = saved(tmp_path, 4)
    forget_older(newest)
    (newest / "weights.bin").write_text("rotten")
    assert step_of(tmp_path) == 2
