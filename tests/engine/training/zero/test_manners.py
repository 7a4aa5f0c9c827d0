"""DeepSpeed leaves the process's global state unchanged."""

import gc
import logging
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_distributed

from engine.policy.lineage import WeightsId
from engine.spec.job import TrainerSpec
from engine.training.trainer import Trainer
from engine.training.zero.guest import searchable
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import trainer_of, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def sharded(folder: Path, **trainer: Any) -> Trainer:
    return trainer_of(folder, trainer=TrainerSpec(backend="deepspeed", **trainer))


def plain(folder: Path, **trainer: Any) -> Trainer:
    return trainer_of(folder, trainer=TrainerSpec(**trainer))


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


@pytest.mark.long_except("2-spec0")
@pytest.mark.parametrize(("stage", "spec"), [(2, {}), (3, {"lora_rank": 3})])
def test_bfloat16_products_equal_the_whole_trainers(make_llama: MakeLlama, stage: int, spec: dict[str, int]) -> None:
    theirs = plain(make_llama(), compute_dtype="bfloat16", **spec)
    ours = sharded(make_llama(), compute_dtype="bfloat16", zero_stage=stage, **spec)
    exact = plain(make_llama(), **spec)
    norms = [trainer.train_step(trajectories_of(0)).metrics["train/grad_norm"] for trainer in (theirs, ours, exact)]
    ours.close()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] != pytest.approx(norms[0], rel=1e-5)


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
