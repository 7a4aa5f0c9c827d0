"""A trainer that begins again goes back to the newest checkpoint that is whole, and never forward to another one."""

import shutil
from pathlib import Path

from engine.live.checkpoints.resuming import PASSED_OVER_FILE, finish_checkpoint, go_back
from engine.live.checkpoints.store import forget_older
from engine.pipeline.records import DataProgress
from engine.training.checkpoint.folder import MANIFEST_FILE, write_checkpoint

PROGRESS = DataProgress(ended=((0, 4),), ledger=(("trained", 16),))


def saved(root: Path, step: int) -> Path:
    folder = root / f"step-{step:06d}"
    write_checkpoint(folder, {"weights.bin": lambda file: _write(file, f"weights of {step}")})
    finish_checkpoint(folder, step=step, progress=PROGRESS)
    return folder


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def step_of(root: Path) -> int | None:
    found = go_back(root)
    return None if found is None else found.step


def test_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    assert go_back(tmp_path) is None
    saved(tmp_path, 2)
    saved(tmp_path, 10)
    assert step_of(tmp_path) == 10


def test_one_that_was_never_finished_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (saved(tmp_path, 4) / MANIFEST_FILE).unlink()
    assert step_of(tmp_path) == step_of(tmp_path) == 2


def test_one_that_was_passed_over_counts_no_more_though_its_bytes_come_back(tmp_path: Path) -> None:
    """A disk that could not read for a moment: by the next time, other weights descend from the checkpoint before."""
    saved(tmp_path, 2)
    weights = saved(tmp_path, 4) / "weights.bin"
    away = shutil.move(weights, tmp_path / "away")
    assert step_of(tmp_path) == 2
    shutil.move(away, weights)
    assert step_of(tmp_path) == 2
    assert (tmp_path / "step-000004" / PASSED_OVER_FILE).exists(), "whoever must can still put it back by hand"
    saved(tmp_path, 4)
    assert step_of(tmp_path) == 4


def test_the_copy_that_is_kept_beside_the_newest_is_one_that_can_be_gone_back_to(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (saved(tmp_path, 3) / "weights.bin").write_text("rotten")
    assert step_of(tmp_path) == 2
    newest = saved(tmp_path, 4)
    forget_older(newest)
    (newest / "weights.bin").write_text("rotten")
    assert step_of(tmp_path) == 2
