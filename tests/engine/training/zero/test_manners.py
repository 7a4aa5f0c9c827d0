"""DeepSpeed leaves the process's global state unchanged."""

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

import engine.training.step.head as head
import engine.training.zero.sharding as sharding
from engine.policy.lineage import WeightsId
from engine.spec.job import TrainerSpec
from engine.training.torch_trainer import TorchTrainer
from engine.training.zero.guest import searchable
from engine.training.zero.trainer import DeepSpeedTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import hash_of, settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def sharded(folder: Path, **trainer: Any) -> DeepSpeedTrainer:
    return DeepSpeedTrainer(folder, settings(trainer=TrainerSpec(backend="deepspeed", **trainer)), device="cpu")


def plain(folder: Path, **trainer: Any) -> TorchTrainer:
    return TorchTrainer(folder, settings(trainer=TrainerSpec(**trainer)), device="cpu")


@pytest.fixture
def group_of_others() -> Iterator[None]:
    torch_distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    torch_distributed.destroy_process_group()


def globals_of_the_process() -> list[object]:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    return [
        *handlers,
        {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"},  # torch's own
        sys.excepthook,
        list(logging.getLogger().handlers),
        torch.nn.functional.linear,
        torch.get_default_dtype(),
        torch_distributed.is_initialized(),
    ]


@pytest.mark.long_except("2")
@pytest.mark.parametrize("stage", [2, 3])
def test_trainer_leaves_globals_and_stdout_unchanged(
    make_llama: MakeLlama, stage: int, capfd: pytest.CaptureFixture[str]
) -> None:
    sharded(make_llama()).close()  # imports leave traces too, before the comparison
    before = globals_of_the_process()
    capfd.readouterr()
    trainer = sharded(make_llama(), zero_stage=stage)
    trainer.train_step(trajectories_of(0))
    trainer.snapshot(WeightsId(0, 1))
    trainer.close()
    assert globals_of_the_process() == before
    assert capfd.readouterr().out == ""


@pytest.mark.long
def test_closed_trainers_model_is_freed(make_llama: MakeLlama) -> None:
    """Nor its process group: a group's threads that outlive Python abort the process."""
    trainer = sharded(make_llama(), zero_stage=3)
    trainer.train_step(trajectories_of(0))
    weights = [weakref.ref(parameter) for parameter in trainer._model.parameters()]
    trainer.close()
    del trainer
    gc.collect()
    assert [each for each in weights if each() is not None] == []


def test_trainers_in_one_process_are_independent(make_llama: MakeLlama) -> None:
    """The world lasts until the last trainer has left, and can be entered again."""
    first, second = sharded(make_llama(), zero_stage=2), sharded(make_llama())
    untouched = hash_of(second)
    first.train_step(trajectories_of(0))
    assert hash_of(second) == untouched != hash_of(first)
    first.close()
    second.train_step(trajectories_of(0))
    second.close()
    third = sharded(make_llama(), zero_stage=3)
    assert hash_of(third) == untouched
    third.close()


def test_process_group_of_other_code_is_left_alone(make_llama: MakeLlama, group_of_others: None) -> None:
    with pytest.raises(ValueError, match="process group"):
        sharded(make_llama())
    assert torch_distributed.get_world_size() == 1


@pytest.mark.long_except("2-spec0")
@pytest.mark.parametrize(("stage", "spec"), [(2, {}), (3, {"lora_rank": 3})])
def test_bfloat16_products_equal_the_torch_trainers(make_llama: MakeLlama, stage: int, spec: dict[str, int]) -> None:
    theirs = plain(make_llama(), compute_dtype="bfloat16", **spec)
    ours = sharded(make_llama(), compute_dtype="bfloat16", zero_stage=stage, **spec)
    exact = plain(make_llama(), **spec)
    norms = [trainer.train_step(trajectories_of(0)).metrics["train/grad_norm"] for trainer in (theirs, ours, exact)]
    ours.close()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] != pytest.approx(norms[0], rel=1e-5)


@pytest.mark.long_except("2")
@pytest.mark.parametrize("stage", [2, 3])
def test_logits_in_chunks_give_the_same_gradient(
    make_llama: MakeLlama, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is recomputed in the backward pass, after stage 3 has freed the weights."""
    monkeypatch.setattr(sharding, "PERSISTENT_NUMEL", 0)
    norms = []
    for logits in (head.LOGITS_ON_A_CPU, 40 * 16):
        monkeypatch.setattr(head, "LOGITS_ON_A_CPU", logits)
        trainer = sharded(make_llama(), zero_stage=stage)
        norms.append([trainer.train_step(trajectories_of(seed)).metrics["train/grad_norm"] for seed in range(2)])
        trainer.close()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_missing_program_does_not_end_training(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without execute permission: root cannot run it either, as other users cannot search a closed folder."""
    (tmp_path / "numactl").touch(mode=0o600)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermissionError):
        subprocess.run(["numactl"])
    trainer = sharded(make_llama(), zero_stage=3)
    assert trainer.train_step(trajectories_of(0)).metrics["train/skipped"] == 0.0
    trainer.close()


def as_an_ordinary_user(path: str) -> str:
    """`searchable(path)` as an ordinary user, since root may search every folder."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        if os.getuid() == 0:
            os.setuid(65_534)
        os.write(writing, searchable(path).encode())
        os._exit(0)
    os.waitpid(child, 0)
    result = os.read(reading, 4_096).decode()
    os.close(reading)
    os.close(writing)
    return result


def test_searchable_drops_folders_without_permission() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        for name, mode in (("open", 0o755), ("closed", 0o700 if os.getuid() == 0 else 0o000)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        given = [folder / "open", folder / "closed", folder / "closed" / "within", folder / "nowhere"]
        result = as_an_ordinary_user(os.pathsep.join(map(str, given)))
        assert result.split(os.pathsep) == [str(folder / "open"), str(folder / "nowhere")]
        assert as_an_ordinary_user(str(folder / "closed")) == os.defpath


def test_unreadable_model_leaves_no_process_group_behind(make_llama: MakeLlama, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((make_llama() / "config.json").read_bytes())
    with pytest.raises((OSError, ValueError)):
        sharded(tmp_path)
    assert not torch_distributed.is_initialized()
