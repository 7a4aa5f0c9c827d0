"""A recorded step runs deterministic kernels; operations without one are recorded by name."""

import json
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

from engine.__main__ import main
from engine.spec.job import JobSpec
from engine.training.factory import build_trainer
from engine.training.replay.deterministic import WORKSPACE, deterministic_kernels, fix_workspace
from engine.training.replay.record import RECORD_FILE
from engine.training.settings import TrainerSettings
from tests.engine.conftest import MakeLlama
from tests.engine.training.replay.test_replay_step import change, recording, spec_of
from tests.engine.training.trainer_conformance import trajectories_of

__all__ = ["recording"]
pytestmark = pytest.mark.usefixtures("one_thread")
WARNING = (
    "scatter_reduce_two_cuda does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True, warn_only=True)'."
)


def test_operations_without_a_deterministic_kernel_are_named() -> None:
    with deterministic_kernels(are_wanted=True) as operations:
        assert torch.are_deterministic_algorithms_enabled()
        warnings.warn(WARNING, stacklevel=1)
        warnings.warn("adaptive_pool backward_cuda does not have a deterministic implementation, but …", stacklevel=1)
        warnings.warn("… you must set the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 …", stacklevel=1)
        warnings.warn("another warning", stacklevel=1)
    assert operations == [
        "adaptive_pool",
        "products, since CUBLAS_WORKSPACE_CONFIG was not set",
        "scatter_reduce_two_cuda",
    ]
    assert not torch.are_deterministic_algorithms_enabled()


def test_kernels_are_as_before_where_the_step_fails() -> None:
    with pytest.raises(ZeroDivisionError), deterministic_kernels(are_wanted=True):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_a_cpu_computes_as_it_always_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with deterministic_kernels() as operations:
        assert not torch.are_deterministic_algorithms_enabled()
    assert operations == []


def test_a_step_runs_on_deterministic_kernels(make_llama: MakeLlama) -> None:
    model = make_llama(dtype="bfloat16")
    settings = TrainerSettings.of(JobSpec.model_validate(spec_of(model)))
    trainers = [build_trainer(model, settings, device="cpu") for _ in range(2)]
    plain = trainers[0].train_step(trajectories_of(0))
    with deterministic_kernels(are_wanted=True) as operations:
        chosen = trainers[1].train_step(trajectories_of(0))
    assert operations == []
    assert chosen.metrics["train/loss"] == pytest.approx(plain.metrics["train/loss"], rel=1e-4)


def test_workspace_of_products_is_fixed_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = WORKSPACE
    monkeypatch.delenv(name, raising=False)
    fix_workspace()
    assert os.environ.pop(name) == value
    monkeypatch.setenv(name, ":16:8")
    fix_workspace()
    assert os.environ[name] == ":16:8"


def test_diverging_replay_names_the_operation(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((recording / RECORD_FILE).read_text())
    assert record["not_deterministic"] == [], "a CPU's step"
    (recording / RECORD_FILE).write_text(json.dumps({**record, "not_deterministic": ["scatter_reduce_two_cuda"]}))
    change(recording, learning_rate=1.1e-3)
    monkeypatch.setattr(sys, "argv", ["python -m engine", "replay-step", str(recording)])
    monkeypatch.setenv(*WORKSPACE)
    assert main() == 1
    assert "no deterministic kernel for scatter_reduce_two_cuda" in capsys.readouterr().out
