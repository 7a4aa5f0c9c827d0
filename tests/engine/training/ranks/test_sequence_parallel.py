"""Ranks that share sequences make the same steps as one process, for every layout and kind of job."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from engine.models.loading import read_config
from engine.spec.job import AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.training.ranks.sequence_parallel import refuse_heads
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.trainer import Trainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.worlds import run_ranks
from tests.engine.training.routed import routed
from tests.engine.training.trainer_conformance import SMOOTH_EPS, assert_same_steps, save, settings, trajectories_of
from tests.engine.training.trainer_parts_conformance import save_qwen

KINDS: Final[dict[str, tuple[AlgorithmSpec, dict[str, Any]]]] = {
    "whole": (AlgorithmSpec(kl=KlSpec(coefficient=0.1), entropy_coefficient=0.01), {"activations": "recomputed"}),
    "critic": (AlgorithmSpec(name="ppo", critic=CriticSpec(gae_lambda=0.9)), {"activations": "kept"}),
    "adapter": (AlgorithmSpec(teacher=TeacherSpec(source="demo")), {"activations": "recomputed", "lora_rank": 3}),
}
LAYOUTS: Final = {"llama": tuple(KINDS), "qwen2": ("whole",), "qwen3": ("whole",), "qwen3_moe": tuple(KINDS)}
SHARED_BY: Final = {4: (2, 4)}
"""By the number of ranks, how many share a sequence. fsdp/test_families.py tests two ranks that share one."""

pytestmark = pytest.mark.usefixtures("one_thread")


def settings_for(kind: str, sharers: int = 1, **ranks: Any) -> TrainerSettings:
    """Settings with micro-batches of several sequences, some with a shared prompt."""
    algorithm, trainer = KINDS[kind]
    return settings(
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS),
        trainer=TrainerSpec(micro_batch_tokens=90, sequence_parallel=sharers, **trainer, **ranks),
    )


ON_HOSTS: Final = "two hosts"


def train(trainer: Trainer, folder: Path, results: Path) -> list[dict[str, float]]:
    config = read_config(folder)
    batches = [routed(trajectories_of(step, tools=True), config, seed=step) for step in range(2)]
    metrics = [trainer.train_step(batch).metrics for batch in batches]
    save(trainer, results)
    return metrics


def be_a_rank(world: World, folders: dict[str, Path], results: Path) -> None:
    num_ranks = world.count
    for layout, folder in folders.items():
        for kind in LAYOUTS[layout]:
            for sharers in SHARED_BY[num_ranks]:
                mine = results / layout / kind / f"{num_ranks}-ranks-{sharers}-share"
                mine.mkdir(parents=True, exist_ok=True)
                trainer = build_trainer(folder, settings_for(kind, sharers), device="cpu", world=world)
                metrics = train(trainer, folder, mine / "trained")
                (mine / f"rank-{world.index}.json").write_text(json.dumps(metrics))
                trainer.close()
            if num_ranks == 4:
                mine = results / layout / kind / ON_HOSTS
                mine.mkdir(exist_ok=True)
                train_on_hosts(world, folder, kind, mine)


def train_on_hosts(world: World, folder: Path, kind: str, results: Path) -> None:
    """Two hosts of two ranks, each with a copy of the weights; the ranks of a host share sequences."""
    world.host = f"host-{world.index // 2}"
    on_hosts = settings_for(kind, 2, shard_within="node", gradient_sums="update")
    trainer = build_trainer(folder, on_hosts, device="cpu", world=world)
    (results / f"rank-{world.index}.json").write_text(json.dumps(train(trainer, folder, results / "trained")))
    trainer.close()


@pytest.fixture(scope="module")
def results(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of several ranks, and of one process on the same batches."""
    results = tmp_path_factory.mktemp("shared")
    # Four query heads and two key/value heads: fewer than the four ranks, each of which then has a copy.
    qwens = {layout: save_qwen(tmp_path_factory.mktemp(layout), layout) for layout in ("qwen2", "qwen3", "qwen3_moe")}
    folders = {"llama": make_llama(), **qwens}
    for layout, folder in folders.items():
        for kind in LAYOUTS[layout]:
            alone = results / layout / kind / "alone"
            alone.mkdir(parents=True)
            metrics = train(build_trainer(folder, settings_for(kind), device="cpu"), folder, alone / "trained")
            (alone / "rank-0.json").write_text(json.dumps(metrics))
    for num_ranks in SHARED_BY:
        assert run_ranks(num_ranks, be_a_rank, folders, results) == [0] * num_ranks
    return results


VARIANTS: Final = [
    (layout, kind, num_ranks, sharers)
    for layout, kinds in LAYOUTS.items()
    for kind in kinds
    for num_ranks, each in SHARED_BY.items()
    for sharers in each
]


@pytest.mark.long
@pytest.mark.parametrize(("layout", "kind", "num_ranks", "sharers"), VARIANTS)
def test_ranks_sharing_sequences_make_the_steps_of_one_process(
    results: Path, layout: str, kind: str, num_ranks: int, sharers: int
) -> None:
    assert_steps_of_one_process(results / layout / kind, f"{num_ranks}-ranks-{sharers}-share", num_ranks)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "kind"), [(layout, kind) for layout, kinds in LAYOUTS.items() for kind in kinds])
def test_sharers_on_hosts_with_copies_make_the_same_steps(results: Path, layout: str, kind: str) -> None:
    assert_steps_of_one_process(results / layout / kind, ON_HOSTS, 4)


def assert_steps_of_one_process(results: Path, how: str, num_ranks: int) -> None:
    alone, shared = results / "alone", results / how
    metrics = [json.loads((shared / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]
    assert all(each == metrics[0] for each in metrics)
    assert_same_steps(
        metrics[0],
        shared / "trained",
        expected=json.loads((alone / "rank-0.json").read_text()),
        expected_checkpoint=alone / "trained",
    )


@pytest.mark.parametrize(("sharers", "is_fine"), [(1, True), (2, True), (4, True), (3, False), (8, False)])
def test_heads_that_do_not_divide_are_refused(make_llama: MakeLlama, sharers: int, is_fine: bool) -> None:
    """Four query heads, two key/value heads."""
    config = read_config(make_llama())
    if is_fine:
        refuse_heads(config, num_sharers=sharers)
    else:
        with pytest.raises(ValueError, match=r"trainer\.sequence_parallel must divide the model's 4 heads, got"):
            refuse_heads(config, num_sharers=sharers)
