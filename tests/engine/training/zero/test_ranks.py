"""Two DeepSpeed ranks make the same steps as one process and as the whole trainer, in every ZeRO stage."""

import os
from pathlib import Path
from typing import Final

import pytest

import engine.training.zero.division as division
from engine.training.factory import build_trainer
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.two_ranks import (
    KINDS,
    TwoRanksConformance,
    one_of_these,
    results_of,
    settings_for,
    train_variant,
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
    patch.setattr(division, "PERSISTENT_NUMEL", 0)
    for kind in KINDS:
        for stage in STAGES:
            train_variant(world, folder, in_stage(kind, stage), results / kind / f"stage-{stage}")


# Fresh processes: DeepSpeed numbers sharded parameters per process, and is imported without a compiler.
two_ranks = results_of(be_a_rank, are_fresh=True)
variant = one_of_these([f"{kind}/stage-{stage}" for kind in KINDS for stage in STAGES])


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
    alone = build_trainer(make_llama(dtype="bfloat16"), in_stage(kind, 1), device="cpu")
    try:
        alone.load(trained)
        assert_same_content(save(alone, tmp_path), trained)
    finally:
        alone.close()
