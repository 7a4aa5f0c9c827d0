"""Checkpoints of several ranks: resuming from them, reading them elsewhere, and failures while saving."""

import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import engine.training.zero.division as zero_division
from engine.training.checkpoint import rank_share, stored_state
from engine.training.checkpoint.content import SavingFailed
from engine.training.checkpoint.folder import (
    MANIFEST_FILE,
    CheckpointUnverified,
    verify_checkpoint,
    write_checkpoint,
)
from engine.training.checkpoint.tensor_file import write_tensors
from engine.training.factory import ALONE, build_trainer
from engine.training.ranks.world import World
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.two_ranks import settings_for
from tests.engine.training.ranks.worlds import read_report, run_ranks, write_report
from tests.engine.training.trainer_conformance import assert_same_content, save, tensors_of, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("whole", "critic", "adapter")
BACKENDS: dict[str, dict[str, Any]] = {"torch": {}, "deepspeed": {"backend": "deepspeed", "zero_stage": 3}}


def trainer_of(kind: str, model: Path, world: World, **trainer: Any) -> Any:
    return build_trainer(model, settings_for(kind, **trainer), device="cpu", world=world)


def make_checkpoints(world: World, model: Path, into: Path) -> None:
    for kind in KINDS:
        trainer = trainer_of(kind, model, world)
        trainer.train_step(trajectories_of(0))
        save(trainer, into / kind)
        trainer.close()


@pytest.fixture(scope="module")
def model(make_llama: MakeLlama) -> Path:
    return make_llama(dtype="bfloat16")


@pytest.fixture(scope="module")
def of_two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints written by two FSDP ranks, by kind."""
    into = tmp_path_factory.mktemp("of-two")
    assert run_ranks(2, make_checkpoints, model, into) == [0, 0]
    return into


# Resuming ----------------------------------------------------------------------------------------------------------


def load_and_save(world: World, model: Path, of_two: Path, into: Path) -> None:
    pytest.MonkeyPatch().setattr(zero_division, "PERSISTENT_NUMEL", 0)
    for kind in KINDS:
        for name, stage in (("fsdp", {}), ("stage-1", {"zero_stage": 1}), ("stage-3", {"zero_stage": 3})):
            trainer = trainer_of(kind, model, world, **({"backend": "deepspeed", **stage} if stage else {}))
            trainer.train_step(trajectories_of(9))  # the load must discard this
            trainer.load(of_two / kind)
            save(trainer, into / kind / name)
            trainer.close()


@pytest.fixture(scope="module")
def by_three(model: Path, of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("by-three")
    assert run_ranks(3, load_and_save, model, of_two, into) == [0, 0, 0]
    return into


@pytest.mark.long
@pytest.mark.parametrize("how", ["fsdp", "stage-1", "stage-3"])
@pytest.mark.parametrize("kind", KINDS)
def test_three_ranks_resume_from_two_with_any_sharding(by_three: Path, of_two: Path, kind: str, how: str) -> None:
    verify_checkpoint(by_three / kind / how)
    assert_same_content(by_three / kind / how, of_two / kind)
    assert {file.name for file in (by_three / kind / how).glob("state-*")} == {
        f"state-0000{rank}-of-00003.safetensors" for rank in (1, 2, 3)
    }


def load_on_four(world: World, model: Path, of_two: Path, into: Path) -> None:
    read: list[int] = []
    before = stored_state._Stored.read

    def counted(stored: Any, span: range) -> Tensor:
        read.append(len(span))
        return before(stored, span)

    pytest.MonkeyPatch().setattr(stored_state._Stored, "read", counted)
    trainer = trainer_of("whole", model, world)
    read.clear()  # drops the reads of the model and its reference
    trainer.load(of_two / "whole")
    write_report(into, world, str(sum(read)))
    save(trainer, into / "again")
    trainer.close()


@pytest.mark.long
def test_four_ranks_read_and_write_their_own_quarters(model: Path, of_two: Path, tmp_path: Path) -> None:
    assert run_ranks(4, load_on_four, model, of_two, tmp_path) == [0, 0, 0, 0]
    assert_same_content(tmp_path / "again", of_two / "whole")
    total = sum(tensor.numel() for name, tensor in tensors_of(of_two / "whole").items() if "/" in name) - len(
        torch.get_rng_state()
    )
    assert sum(int(read_report(tmp_path, rank)) for rank in range(4)) == total
    assert max(int(read_report(tmp_path, rank)) for rank in range(4)) == pytest.approx(total / 4, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_plain_safetensors_checkpoint_can_be_resumed(model: Path, of_two: Path, tmp_path: Path, kind: str) -> None:
    alone = build_trainer(model, settings_for(kind), device="cpu")
    alone.load(of_two / kind)
    saved = save(alone, tmp_path / "today")
    parts: dict[str, Callable[[Path], object]] = {
        name: lambda file, name=name: file.write_bytes((saved / name).read_bytes())  # type: ignore[misc]
        for name in ("config.json", "trainer.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors")
        if (saved / name).exists()
    }
    for name in ("model.safetensors", "optimizer.safetensors"):
        tensors = load_file(saved / name)
        parts[name] = lambda file, tensors=tensors: save_file(tensors, file, {"format": "pt"})  # type: ignore[misc]
    write_checkpoint(tmp_path / "then", parts)
    later = build_trainer(model, settings_for(kind), device="cpu")
    later.load(tmp_path / "then")
    assert_same_content(save(later, tmp_path / "again"), of_two / kind)


# Other readers -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_what_two_ranks_published(of_two: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    published = {name: tensor for name, tensor in tensors_of(of_two / kind).items() if "/" not in name}
    loaded = AutoModelForCausalLM.from_pretrained(of_two / kind).state_dict()
    assert published and all(torch.equal(loaded[name].view(-1), each.view(-1)) for name, each in published.items())
    index = json.loads((of_two / kind / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {f"model-0000{rank}-of-00002.safetensors" for rank in (1, 2)}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in published.values())


@pytest.mark.long
def test_each_rank_wrote_its_half(of_two: Path) -> None:
    for pattern in ("state-*", "model-*.safetensors"):
        sizes = [sum(t.nbytes for t in load_file(file).values()) for file in sorted((of_two / "whole").glob(pattern))]
        assert len(sizes) == 2
        assert max(sizes) - min(sizes) < 0.25 * max(sizes)


# Failures ----------------------------------------------------------------------------------------------------------


def save_on_a_full_disk(world: World, model: Path, into: Path, backend: str) -> None:
    trainer = trainer_of("whole", model, world, **BACKENDS[backend])
    save(trainer, into / "step-1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step, full in enumerate((1, 0), start=2):
        trainer.train_step(trajectories_of(step))
        write = trainer.prepare_save(into / f"step-{step}")
        if world.index == full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))
        with pytest.raises(SavingFailed) as failed:
            write()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        write_report(into / "step-1", world, f"{failed.value}")
        assert f"step-{step} was not written: rank {full}: OSError" in str(failed.value)
    save(trainer, into / "step-4")
    trainer.close()


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_full_disk_of_one_rank_fails_that_save_and_names_it(model: Path, tmp_path: Path, backend: str) -> None:
    """Both continue training, and save again once there is room."""
    assert run_ranks(2, save_on_a_full_disk, model, tmp_path, backend) == [0, 0]
    for step in (1, 4):
        verify_checkpoint(tmp_path / f"step-{step}")
    for step in (2, 3):
        with pytest.raises(CheckpointUnverified):
            verify_checkpoint(tmp_path / f"step-{step}")
    assert "File too large" in read_report(tmp_path / "step-1", 0)


def die_while_saving(world: World, model: Path, into: Path, backend: str, where: str) -> None:
    trainer = trainer_of("whole", model, world, **BACKENDS[backend])
    save(trainer, into / "step-1")
    trainer.train_step(trajectories_of(1))
    if world.index == 1:

        def die(file: Path, *content: Any) -> Any:
            if where in file.name:
                os.kill(os.getpid(), signal.SIGKILL)
            return write_tensors(file, *content)

        pytest.MonkeyPatch().setattr(rank_share, "write_tensors", die)
    with pytest.raises(RuntimeError):
        save(trainer, into / "step-2")
    os._exit(7)  # there is no group to leave


@pytest.mark.long
@pytest.mark.parametrize(
    ("backend", "where"),
    [("torch", "model-"), pytest.param("torch", "state-", marks=pytest.mark.soak), ("deepspeed", "state-")],
)
def test_rank_killed_while_saving_leaves_previous_checkpoint(
    model: Path, tmp_path: Path, backend: str, where: str
) -> None:
    assert run_ranks(2, die_while_saving, model, tmp_path, backend, where) == [7, -signal.SIGKILL]
    verify_checkpoint(tmp_path / "step-1")
    assert not (tmp_path / "step-2" / MANIFEST_FILE).exists()


def refuse_torn(world: World, model: Path, torn: Path) -> None:
    trainer = trainer_of("whole", model, world)
    with pytest.raises(CheckpointUnverified, match=r"rank \d: .*state-00002-of-00002"):
        trainer.load(torn)
    trainer.train_step(trajectories_of(0))
    trainer.close()


@pytest.mark.long
def test_torn_file_found_by_one_rank_is_refused_by_all(model: Path, of_two: Path, tmp_path: Path) -> None:
    for file in (of_two / "whole").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    file = tmp_path / "state-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert run_ranks(2, refuse_torn, model, tmp_path) == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize(("backend", "world"), [("torch", None), ("torch", ALONE), ("deepspeed", None)])
def test_other_dtype_or_adapter_rank_is_refused_with_both_values(
    backend: str, world: World | None, of_two: Path, make_llama: MakeLlama
) -> None:
    other = build_trainer(
        make_llama(dtype="float32"), settings_for("whole", **BACKENDS[backend]), device="cpu", world=world
    )
    with pytest.raises(
        ValueError, match=r"of another model than this trainer's: dtype torch.bfloat16, not torch.float32"
    ):
        other.load(of_two / "whole")
    other.close()
    settings = settings_for("adapter", **BACKENDS[backend])
    thinner = replace(settings, trainer=settings.trainer.model_copy(update={"lora_rank": 2}))
    adapted = build_trainer(make_llama(dtype="bfloat16"), thinner, device="cpu", world=world)
    with pytest.raises(ValueError, match=r"lora_rank 3.*, not .*lora_rank 2.*; continue it with those, or"):
        adapted.load(of_two / "adapter")
    adapted.close()
