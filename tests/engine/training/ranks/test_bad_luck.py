"""A failure of one rank ends the step on all ranks at once, and leaves the previous checkpoint whole."""

import gc
import json
import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine.training.zero.division as zero_division
from engine.live.process.memory import describe_error, is_out_of_memory
from engine.training.checkpoint.folder import verify_checkpoint
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.doom import PHASES, kill_this_process, strike_at
from tests.engine.training.ranks.two_ranks import poisoned, settings_for
from tests.engine.training.ranks.worlds import TIMEOUT_S, read_report, run_ranks, write_report
from tests.engine.training.trainer_conformance import assert_same_content, hash_of, save, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")

BACKENDS: dict[str, dict[str, Any]] = {
    "torch": {},
    "stage-3": {"backend": "deepspeed", "zero_stage": 3},
}
# A failed rank's connections are closed at once: a rank must not wait for the timeout of a collective.
AT_ONCE_S = TIMEOUT_S / 2


def trainer_of(backend: str, kind: str, model: Path, world: World) -> Any:
    pytest.MonkeyPatch().setattr(zero_division, "PERSISTENT_NUMEL", 0)  # so that stage 3 shards these small models
    return build_trainer(model, settings_for(kind, **BACKENDS[backend]), device="cpu", world=world)


@pytest.fixture(scope="module")
def model(make_llama: MakeLlama) -> Path:
    return make_llama(dtype="bfloat16")


# Killed ------------------------------------------------------------------------------------------------------------


def lose_a_rank(world: World, model: Path, into: Path, backend: str, phase: str) -> None:
    trainer = trainer_of(backend, "critic", model, world)
    trainer.train_step(trajectories_of(0))
    save(trainer, into / "step-1")
    if world.index == 1:
        strike_at(phase, trainer, kill_this_process)
    begun = time.monotonic()
    with pytest.raises(RuntimeError):
        trainer.train_step(trajectories_of(1))
    write_report(into, world, f"{time.monotonic() - begun}")
    os._exit(7)  # there is no group to leave


@pytest.mark.proof
@pytest.mark.long_except("torch-backward")
@pytest.mark.parametrize(
    ("backend", "phase"),
    [
        ("torch", "backward"),
        ("torch", "update"),
        ("stage-3", "gather"),
        *(pytest.param("torch", phase, marks=pytest.mark.soak) for phase in ("forward", "gather")),
        *(pytest.param("stage-3", phase, marks=pytest.mark.soak) for phase in PHASES if phase != "gather"),
    ],
)
def test_rank_killed_in_a_step_fails_all_and_keeps_checkpoint(
    model: Path, tmp_path: Path, backend: str, phase: str
) -> None:
    assert run_ranks(2, lose_a_rank, model, tmp_path, backend, phase) == [7, -signal.SIGKILL]
    assert float(read_report(tmp_path, 0)) < AT_ONCE_S
    verify_checkpoint(tmp_path / "step-1")
    alone = build_trainer(model, settings_for("critic"), device="cpu")
    alone.load(tmp_path / "step-1")
    assert_same_content(save(alone, tmp_path / "again"), tmp_path / "step-1")


def build_in_vain(world: World, model: Path, into: Path, backend: str) -> None:
    begun = time.monotonic()
    if world.index == 0:
        with suppress(RuntimeError):  # raised unless the trainer first communicates in its first step
            trainer_of(backend, "whole", model, world)
        write_report(into, world, f"{time.monotonic() - begun}")
        os._exit(7)
    world.abandon("cpu")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", pytest.param("stage-3", marks=pytest.mark.soak)])
def test_rank_without_a_trainer_fails_the_others_at_once(model: Path, tmp_path: Path, backend: str) -> None:
    assert run_ranks(2, build_in_vain, model, tmp_path, backend) == [7, 0]
    assert float(read_report(tmp_path, 0)) < AT_ONCE_S


# Not a number ------------------------------------------------------------------------------------------------------


def skip_together(world: World, model: Path, into: Path, backend: str) -> None:
    trainer = trainer_of(backend, "critic", model, world)
    trainer.train_step(trajectories_of(0))
    before = hash_of(trainer)
    skipped = trainer.train_step(poisoned()).metrics
    kept = hash_of(trainer) == before
    write_report(into, world, json.dumps([skipped, kept, trainer.train_step(trajectories_of(1)).metrics]))
    trainer.close()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", pytest.param("stage-3", marks=pytest.mark.soak)])
def test_nan_on_one_of_four_ranks_skips_that_update_on_all(model: Path, tmp_path: Path, backend: str) -> None:
    assert run_ranks(4, skip_together, model, tmp_path, backend) == [0] * 4
    first, *others = (json.loads(read_report(tmp_path, rank)) for rank in range(4))
    assert all(other == first for other in others)
    skipped, kept, later = first
    assert skipped["train/skipped"] == 1.0 and kept
    assert later["train/skipped"] == 0.0 and later["train/grad_norm"] > 0.0


# Too large ---------------------------------------------------------------------------------------------------------

# Enough for small allocations, so that a tensor of a pass reaches the limit, and not a thread.
ROOM = 64 * 2**20


def long_answers() -> list[TrainingTrajectory]:
    """One pass of 120,000 tokens, each of which saves some 10 kB."""
    (one, *_) = trajectories_of(0)
    answers = [replace(one, group=index // 8, reward=float(index % 2)) for index in range(1_000)]
    longer = (4, 5, 6) * 50
    return [
        replace(each, prompt_ids=(4,), response_ids=longer, behaviour_logprobs=(-3.6,) * 150, staleness=(0,) * 150)
        for each in answers
    ]


def in_one_pass(kind: str) -> TrainerSettings:
    settings = settings_for(kind)
    trainer = settings.trainer.model_copy(update={"micro_batch_tokens": 1_000_000})
    return replace(settings, max_new_tokens=150, trainer=trainer)


def run_out(world: World, model: Path, into: Path) -> None:
    trainer = build_trainer(model, in_one_pass("whole"), device="cpu", world=world)
    trainer.train_step(trajectories_of(0))
    save(trainer, into / "step-1")
    if world.index == 1:
        gc.collect()
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, resource.RLIM_INFINITY))
    with pytest.raises((RuntimeError, MemoryError)) as failed:
        trainer.train_step(long_answers())
    write_report(into, world, json.dumps([is_out_of_memory(failed.value), describe_error(failed.value)]))
    os._exit(7)


@pytest.mark.long
def test_out_of_memory_error_names_the_batchs_size(model: Path, tmp_path: Path) -> None:
    assert run_ranks(2, run_out, model, tmp_path) == [7, 7]
    recognised, words = json.loads(read_report(tmp_path, 1))
    tokens = 1 + 500 * 149  # the shared prompt is read once, and a last token is never read
    assert recognised and f"in a micro-batch of {tokens:,} tokens, 500 sequences, the longest 150" in words
    assert not json.loads(read_report(tmp_path, 0))[0], "the other rank has only lost a connection"
    verify_checkpoint(tmp_path / "step-1")
