"""Two real ranks hold what is counted: FSDP and every stage of ZeRO, with every model in addition to the policy."""

from typing import Any

import pytest

from engine.fit.hosts import trainer_host_need
from engine.fit.need import total
from engine.fit.plan import TrainerPlan
from engine.fit.planning import plan_trainer
from engine.fit.shape import ModelShape
from engine.fit.trainer import trainer_need
from engine.models.make_random import make_random
from engine.spec.job import JobSpec
from engine.training.checkpoint.stored_state import _BLOCK_NUMEL
from tests.engine.fit.measured.ranks_of_a_job import WIDE, Held, held_by_ranks, job

pytestmark = pytest.mark.soak

CRITIC_AND_REFERENCE: dict[str, Any] = {"algorithm": {"name": "ppo", "kl": {"coefficient": 0.1}}}


def fsdp(**trainer: Any) -> dict[str, Any]:
    return {"compute_dtype": "float32", **trainer}


def zero(stage: int, **trainer: Any) -> dict[str, Any]:
    return fsdp(backend="deepspeed", zero_stage=stage, **trainer)


JOBS = {
    "fsdp": job(trainer=fsdp()),
    "fsdp, bfloat16": job(trainer=fsdp(compute_dtype="bfloat16")),
    "fsdp, critic and reference": job(trainer=fsdp(), **CRITIC_AND_REFERENCE),
    "fsdp, adapter": job(trainer=fsdp(lora_rank=8)),
    "fsdp, adapter, kept": job(trainer=fsdp(lora_rank=8, activations="kept")),
    "fsdp, bfloat16 moments": job(trainer=fsdp(), optimizer={"moments": "bfloat16"}),
    "fsdp, 8-bit moments": job(trainer=fsdp(), optimizer={"moments": "float8"}),
    "fsdp, offloaded moments": job(trainer=fsdp(), optimizer={"offload": True}),
    **{f"zero {stage}": job(trainer=zero(stage)) for stage in (1, 2, 3)},
    **{f"zero {stage}, critic and reference": job(trainer=zero(stage), **CRITIC_AND_REFERENCE) for stage in (1, 2, 3)},
    "zero 2, adapter": job(trainer=zero(2, lora_rank=8)),
    "zero 3, adapter": job(trainer=zero(3, lora_rank=8)),
    "zero 3, kept": job(trainer=zero(3, activations="kept")),
    "zero 3, bfloat16": job(trainer=zero(3, compute_dtype="bfloat16")),
    "zero 2, bfloat16, kept": job(trainer=zero(2, compute_dtype="bfloat16", activations="kept")),
}
OF_A_BLOCK = 4 * _BLOCK_NUMEL
UNTIED = ("fsdp", "zero 1", "zero 2", "zero 3")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], list[Held]]:
    held: dict[tuple[str, bool], list[Held]] = {}
    for tied, names in ((True, tuple(JOBS)), (False, UNTIED)):
        folder = tmp_path_factory.mktemp("ranks")
        make_random(folder / "model", {**WIDE, "tie_word_embeddings": tied})
        by_job = held_by_ranks({name: JOBS[name] for name in names}, folder / "model", folder)
        held |= {(name, tied): by_job[name] for name in names}
    return held


EVERY = [(name, True) for name in JOBS] + [(name, False) for name in UNTIED]


@pytest.mark.parametrize(("name", "tied"), EVERY)
def test_training_rank_holds_at_most_its_count(
    measured: dict[tuple[str, bool], list[Held]], name: str, tied: bool
) -> None:
    peak = max(held.training for held in measured[name, tied])
    counted = of_device(JOBS[name], tied=tied)
    assert peak / 1.005 <= counted <= 1.25 * peak, f"{counted / peak:.3f} of {peak:,}"


@pytest.mark.parametrize(("name", "tied"), EVERY)
def test_saving_ranks_take_at_most_their_hosts_count(
    measured: dict[tuple[str, bool], list[Held]], name: str, tied: bool
) -> None:
    taken = sum(held.saving for held in measured[name, tied])
    shape, plan = shape_and_plan(JOBS[name], tied=tied)
    [saving] = [phase for phase in trainer_host_need(shape, plan).phases if "checkpoint" in phase.what]
    assert taken / 1.005 <= saving.num_bytes <= 1.25 * taken, f"{saving.num_bytes / taken:.3f} of {taken:,}"


@pytest.mark.parametrize(("name", "tied"), EVERY)
def test_loading_rank_holds_no_second_whole_model(
    measured: dict[tuple[str, bool], list[Held]], name: str, tied: bool
) -> None:
    """Stage 3 makes each matrix whole before it divides it: a layer's, and at last embedding and head."""
    shape, plan = shape_and_plan(JOBS[name], tied=tied)
    made_whole = 4 * (shape.table_weights + shape.largest_layer) if plan.division == "zero3" else 0
    assert all(held.loading <= made_whole + OF_A_BLOCK for held in measured[name, tied])


def of_device(spec: JobSpec, *, tied: bool) -> int:
    """And of what is offloaded a rank's half: its host's memory is its device's here."""
    shape, plan = shape_and_plan(spec, tied=tied)
    return trainer_need(shape, plan).counted + _moments_of_host(shape, plan) // plan.num_devices


def _moments_of_host(shape: ModelShape, plan: TrainerPlan) -> int:
    return total(tuple(term for term in trainer_host_need(shape, plan).always if term.what == "moments"))


def shape_and_plan(spec: JobSpec, *, tied: bool) -> tuple[ModelShape, TrainerPlan]:
    shape = ModelShape.of_config({**WIDE, "tie_word_embeddings": tied})
    return shape, plan_trainer(spec, shape, on_gpu=False, prompt_tokens=1)
