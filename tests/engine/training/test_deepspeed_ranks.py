"""Two processes make the steps of one, and of the torch trainer, whatever ZeRO divides between them."""

import json
import multiprocessing
import multiprocessing.queues
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import engine.training.deepspeed_sharding as sharding
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint import MANIFEST_FILE, verify_checkpoint
from engine.training.deepspeed_trainer import DeepSpeedTrainer
from engine.training.deepspeed_world import World
from engine.training.port import Trainer, TrainingTrajectory
from engine.training.settings import TrainerSettings
from engine.training.torch_trainer import TorchTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    assert_same_steps,
    save,
    settings,
    trajectories_of,
)

STAGES = (1, 2, 3)
COMPILED = "compiled"
ENDED_WITHIN_S = 240

pytestmark = pytest.mark.usefixtures("one_thread")


ASKED: Final[dict[str, tuple[AlgorithmSpec, dict[str, Any], dict[str, int]]]] = {
    "whole": (AlgorithmSpec(kl=KlSpec(coefficient=0.1), entropy_coefficient=0.01), {}, {}),
    # A λ below 1: of one trajectory, the returns differ by much more than by rounding. They are what is standardised.
    "critic": (
        AlgorithmSpec(name="ppo", kl=KlSpec(coefficient=0.1, estimator="k1"), critic=CriticSpec(gae_lambda=0.9)),
        {},
        {},
    ),
    "adapter": (AlgorithmSpec(kl=KlSpec(coefficient=0.1)), {"lora_rank": 3, "lora_alpha": 12.0}, {}),
    "updates": (AlgorithmSpec(), {}, {"mini_batches": 2, "passes": 2}),
}
EACH = [(kind, stage) for kind in ASKED for stage in STAGES]


def asked(kind: str, stage: int) -> TrainerSettings:
    """Rectangles so small that ranks have different numbers of micro-batches; a reference, which is divided too."""
    algorithm, trainer, updates = ASKED[kind]
    return settings(
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS),
        trainer=TrainerSpec(backend="deepspeed", zero_stage=stage, micro_batch_tokens=40, **trainer),
        **updates,
    )


def batches() -> list[list[TrainingTrajectory]]:
    """The second has fewer trajectories than there are ranks; it has a reward, which rounding is nothing beside."""
    (one,) = trajectories_of(1, num=1)
    return [trajectories_of(0), [replace(one, reward=1.0)], trajectories_of(2, num=7)]


def poisoned() -> list[TrainingTrajectory]:
    """Only one trajectory, so only one rank, sees a number that is none."""
    first, *others = trajectories_of(3)
    return [replace(first, behaviour_logprobs=(float("nan"),) * len(first.response_ids)), *others]


def train(trainer: Trainer) -> list[dict[str, float]]:
    return [trainer.train_step(batch).metrics for batch in batches()]


def story(trainer: Trainer, results: Path) -> dict[str, Any]:
    told = train(trainer)
    save(trainer, results / "trained")
    skipped = trainer.train_step(poisoned()).metrics
    kept = trainer.snapshot(WeightsId(0, 0)).manifest.sha256
    trainer.load(results / "trained")
    loaded = trainer.snapshot(WeightsId(0, 0)).manifest.sha256
    on = trainer.train_step(trajectories_of(4)).metrics
    save(trainer, results / "straight")
    trainer.load(results / "trained")
    again = trainer.train_step(trajectories_of(4)).metrics
    save(trainer, results / "resumed")
    trainer.load(results.parent / "torch")
    save(trainer, results / "from-torch")
    return {"told": told, "skipped": skipped, "kept": kept, "loaded": loaded, "on": on, "again": again}


def run_rank(rank: int, folder: Path, results: Path, addresses: "multiprocessing.queues.Queue[str]") -> None:
    os.environ |= {"PATH": "/nowhere", "TORCH_EXTENSIONS_DIR": str(results / COMPILED)}
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    patch.setattr(sharding, "PERSISTENT_NUMEL", 0)
    if rank == 0:
        world = World.open(num_ranks=2, host="127.0.0.1", timeout_s=60)
        addresses.put(world.address)
    else:
        world = World.join(addresses.get(timeout=60), rank=rank, num_ranks=2, timeout_s=60)
    for kind, stage in EACH:
        mine = results / kind / f"stage-{stage}"
        mine.mkdir(parents=True, exist_ok=True)
        trainer = DeepSpeedTrainer(folder, asked(kind, stage), device="cpu", world=world)
        (mine / f"rank-{rank}.json").write_text(json.dumps(story(trainer, mine)))
        trainer.close()


@pytest.fixture(scope="module")
def two_ranks(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind. Processes of their own: DeepSpeed numbers what it divides, process by process."""
    folder, results = make_llama(dtype="bfloat16"), tmp_path_factory.mktemp("ranks")
    for kind in ASKED:
        torch_trainer = TorchTrainer(folder, asked(kind, 1), device="cpu")
        (results / kind).mkdir()
        (results / kind / "torch.json").write_text(json.dumps(train(torch_trainer)))
        save(torch_trainer, results / kind / "torch")
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    ranks = [context.Process(target=run_rank, args=(rank, folder, results, addresses)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(ENDED_WITHIN_S)
        if rank.is_alive():
            rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return results


def told_by(results: Path, kind: str, stage: int, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((results / kind / f"stage-{stage}" / f"rank-{rank}.json").read_text())
    return told


@pytest.mark.parametrize(("kind", "stage"), EACH)
def test_two_ranks_make_the_steps_of_the_torch_trainer(two_ranks: Path, kind: str, stage: int) -> None:
    assert_same_steps(
        told_by(two_ranks, kind, stage)["told"],
        two_ranks / kind / f"stage-{stage}" / "trained",
        expected=json.loads((two_ranks / kind / "torch.json").read_text()),
        expected_checkpoint=two_ranks / kind / "torch",
    )


@pytest.mark.parametrize(("kind", "stage"), EACH)
def test_every_rank_tells_the_same_of_a_step_and_skips_the_same(two_ranks: Path, kind: str, stage: int) -> None:
    first, second = told_by(two_ranks, kind, stage, 0), told_by(two_ranks, kind, stage, 1)
    assert first["told"] == second["told"]
    assert [metrics["train/skipped"] for metrics in first["told"]] == [0.0, 0.0, 0.0]
    assert first["skipped"] == second["skipped"]
    if kind == "updates":  # its mini-batch in both passes; the other one's updates are made
        assert (first["skipped"]["train/skipped"], first["skipped"]["train/updates"]) == (2.0, 2.0)
        assert [metrics["train/updates"] for metrics in first["told"]] == [4.0, 2.0, 4.0]
        return
    assert first["skipped"]["train/skipped"] == 1.0
    assert first["kept"] == first["loaded"]  # what was saved before the step that was skipped


def test_no_compiler_was_needed(two_ranks: Path) -> None:
    assert not list(two_ranks.rglob(COMPILED))


@pytest.mark.parametrize(("kind", "stage"), EACH)
def test_two_ranks_resume_bit_for_bit(two_ranks: Path, kind: str, stage: int) -> None:
    told = told_by(two_ranks, kind, stage)
    assert told["again"] == told["on"]
    ends = [two_ranks / kind / f"stage-{stage}" / name for name in ("straight", "resumed")]
    assert (ends[0] / MANIFEST_FILE).read_bytes() == (ends[1] / MANIFEST_FILE).read_bytes()


@pytest.mark.parametrize(("kind", "stage"), EACH)
def test_a_checkpoint_of_the_torch_trainer_is_taken_over_whole(two_ranks: Path, kind: str, stage: int) -> None:
    taken = two_ranks / kind / f"stage-{stage}" / "from-torch"
    verify_checkpoint(taken)
    assert (taken / MANIFEST_FILE).read_bytes() == (two_ranks / kind / "torch" / MANIFEST_FILE).read_bytes()


@pytest.mark.parametrize("kind", ASKED)
def test_a_checkpoint_of_two_ranks_goes_on_in_one_process_and_another_stage(
    two_ranks: Path, make_llama: MakeLlama, tmp_path: Path, kind: str
) -> None:
    folder, trained = make_llama(dtype="bfloat16"), two_ranks / kind / "stage-3" / "trained"
    torch_trainer = TorchTrainer(folder, asked(kind, 1), device="cpu")
    alone = DeepSpeedTrainer(folder, asked(kind, 1), device="cpu")
    try:
        for name, trainer in (("torch", torch_trainer), ("alone", alone)):
            trainer.load(trained)
            again = save(trainer, tmp_path / name)
            assert (again / MANIFEST_FILE).read_bytes() == (trained / MANIFEST_FILE).read_bytes()
    finally:
        alone.close()
