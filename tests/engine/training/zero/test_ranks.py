"""Two DeepSpeed ranks make the same steps as one process and as the torch trainer, in every ZeRO stage."""

import os
from pathlib import Path
from typing import Final

import pytest

import engine.training.zero.sharding as sharding
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.zero.trainer import DeepSpeedTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.two_ranks import (
    KINDS,
    TwoRanksConformance,
    settings_for,
    story,
    two_processes,
    write_facts,
)
from tests.engine.training.trainer_conformance import assert_same_content, save

STAGES: Final = (1, 2, 3)
COMPILED: Final = "compiled"

pytestmark = pytest.mark.usefixtures("one_thread")


def in_stage(kind: str, stage: int) -> TrainerSettings:
    return settings_for(kind, backend="deepspeed", zero_stage=stage)


def be_a_rank(world: World, folder: Path, results: Path) -> None:
    os.environ |= {"PATH": "/nowhere", "TORCH_EXTENSIONS_DIR": str(results / COMPILED)}
    patch = pytest.MonkeyPatch()
    patch.setattr(sharding, "PERSISTENT_NUMEL", 0)
    for kind in KINDS:
        for stage in STAGES:
            mine = results / kind / f"stage-{stage}"
            mine.mkdir(exist_ok=True)
            trainer = DeepSpeedTrainer(folder, in_stage(kind, stage), device="cpu", world=world)
            write_facts(story(trainer, mine), mine, world)
            trainer.close()


@pytest.fixture(scope="module")
def two_ranks(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs fresh processes: DeepSpeed numbers sharded parameters per process, and is imported without a compiler."""
    model, results = make_llama(dtype="bfloat16"), tmp_path_factory.mktemp("ranks")
    return two_processes(be_a_rank, model, results, are_fresh=True)


@pytest.fixture(params=[f"{kind}/stage-{stage}" for kind in KINDS for stage in STAGES])
def variant(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.mark.long
class TestTwoDeepSpeedRanks(TwoRanksConformance):
    pass


@pytest.mark.long
def test_no_compiler_was_needed(two_ranks: Path) -> None:
    assert not list(two_ranks.rglob(COMPILED))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_of_two_ranks_resumes_alone_in_another_stage(
    two_ranks: Path, make_llama: MakeLlama, tmp_path: Path, kind: str
) -> None:
    trained = two_ranks / kind / "stage-3" / "trained"
    alone = DeepSpeedTrainer(make_llama(dtype="bfloat16"), in_stage(kind, 1), device="cpu")
    try:
        alone.load(trained)
        assert_same_content(save(alone, tmp_path), trained)
    finally:
        alone.close()
