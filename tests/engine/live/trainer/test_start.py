"""A trainer starts from its checkpoint; base weights whose evaluation is due are copied before it is loaded."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from engine.live.checkpoints.apart import load_alone
from engine.live.checkpoints.resuming import ResumePoint, finish_checkpoint, open_checkpoint
from engine.live.process.links import Links
from engine.live.trainer.publishing import PublishingAlone
from engine.live.trainer.start import Started, Starter
from engine.live.weights.handover import Handover
from engine.pipeline.messages.to_driver import CheckpointReported
from engine.pipeline.records import DataProgress
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from engine.training.trainer import Trainer
from tests.engine.live.trainer.test_ranks import make_trainer, trajectories_of


def weights_of(trainer: Trainer) -> bytes:
    return bytes(trainer.snapshot(WeightsId(9, 9)).buffer)


def save(trainer: Trainer, root: Path, step: int, *, base_is_due: bool) -> Path:
    folder = root / f"step-{step:06d}"
    trainer.prepare_save(folder)()
    finish_checkpoint(folder, step=step, progress=DataProgress(base_is_due=base_is_due))
    return folder


def reported(step: int) -> CheckpointReported:
    return CheckpointReported(step=step, uri="file:///checkpoint", manifest_sha256="0" * 64, num_bytes=1)


class NewTrainer:
    """One incarnation's trainer, and what it hands over."""

    def __init__(self, owner: str) -> None:
        self.trainer: Trainer = make_trainer("torch", device="cpu")
        self.handover = Handover(owner=owner)
        publishing = PublishingAlone(self.trainer, self.handover, probe=self.trainer.probe)
        self.starter = Starter(partial(load_alone, self.trainer), publishing)

    def base_copy(self) -> bytes:
        segment, _ = self.handover._kept[BASE_WEIGHTS]
        return bytes(segment.buffer)


@pytest.fixture(scope="module")
def base() -> bytes:
    return weights_of(make_trainer("torch", device="cpu"))


@pytest.fixture
def new() -> Iterator[NewTrainer]:
    made = NewTrainer(f"{Links().run}-trainer")
    yield made
    made.handover.close()
    made.trainer.close()


@pytest.fixture
def trained() -> Iterator[Trainer]:
    trainer: Trainer = make_trainer("torch", device="cpu")
    trainer.train_step(trajectories_of(0))
    yield trainer
    trainer.close()


def point_of(folder: Path) -> ResumePoint:
    return open_checkpoint(str(folder))


def test_due_base_weights_are_copied_then_checkpoint_is_loaded(
    new: NewTrainer, trained: Trainer, base: bytes, tmp_path: Path
) -> None:
    started = new.starter.start(point_of(save(trained, tmp_path, 1, base_is_due=True)))
    assert started.base is not None and started.base.weights == BASE_WEIGHTS and started.base.probe is not None
    assert new.base_copy() == base
    assert weights_of(new.trainer) == weights_of(trained) != base


def test_no_copy_is_made_if_they_are_evaluated(new: NewTrainer, trained: Trainer, tmp_path: Path) -> None:
    started = new.starter.start(point_of(save(trained, tmp_path, 1, base_is_due=False)))
    assert started.base is None and not new.handover.holds(BASE_WEIGHTS)
    assert weights_of(new.trainer) == weights_of(trained)


def test_new_job_starts_with_base_weights_as_its_first_version(new: NewTrainer, base: bytes) -> None:
    assert new.starter.start(None) == Started(point=None, base=None)
    assert weights_of(new.trainer) == base


def test_later_incarnation_copies_them_for_its_own_checkpoint(
    new: NewTrainer, trained: Trainer, base: bytes, tmp_path: Path
) -> None:
    save(trained, tmp_path, 1, base_is_due=True)
    rotten = save(trained, tmp_path, 2, base_is_due=True) / "model.safetensors"
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"x")
    started = new.starter.start_again(None, checkpoints=tmp_path, reported=reported(2))
    assert started.point is not None and started.point.step == 1
    assert started.base is not None and new.base_copy() == base, "not weights of the checkpoint that was refused"


def test_copy_for_a_damaged_checkpoint_is_dropped(new: NewTrainer, trained: Trainer, tmp_path: Path) -> None:
    rotten = save(trained, tmp_path, 1, base_is_due=True) / "model.safetensors"
    rotten.write_bytes(rotten.read_bytes()[:-1] + b"x")
    started = new.starter.start_again(None, checkpoints=tmp_path, reported=reported(1))
    assert started == Started(point=None, base=None) and not new.handover.holds(BASE_WEIGHTS)
