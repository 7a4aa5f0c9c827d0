"""Two FSDP2 ranks make the same steps as one process and as the whole trainer; memory and traffic of each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from engine.models.families.trained_model import read_model_config
from engine.models.loading import load_decoder, weight_files
from engine.training.checkpoint.stored_state import StoredState
from engine.training.factory import build_trainer
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.parts.layout import decoder_places, own_part
from engine.training.ranks.passes import PolicyPass
from engine.training.ranks.world import World
from engine.training.step.micro_batch import MicroBatch, batch_step
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.two_ranks import (
    TwoRanksConformance,
    facts_of,
    one_of_these,
    results_of,
    settings_for,
    train_variant,
    write_facts,
)
from tests.engine.training.trainer_conformance import trajectories_of

DIVIDED: Final = "divided"
LOW: Final = "bfloat16"
THIN: Final = "adapter of rank 1"

# Every kind; recomputation is sharded alike for all kinds except the adapter.
VARIANTS: Final = ("whole/kept", "whole/recomputed", "critic/kept", "adapter/recomputed", "updates/kept")

pytestmark = pytest.mark.usefixtures("one_thread")


def micro_batch() -> MicroBatch:
    return batch_step(trajectories_of(0), max_tokens=10_000, device="cpu").micro_batches[0]


def bytes_for_backward(whole_pass: Callable[[MicroBatch], Any], *, model: nn.Module) -> int:
    """The bytes that a forward pass saves, without the memory of the model's parameters."""
    its_own = {own_part(parameter).untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def note(saved: Tensor) -> Tensor:
        kept[saved.untyped_storage()._cdata] = saved.untyped_storage()
        return saved

    with saved_tensors_hooks(note, lambda saved: saved):
        scores = whole_pass(micro_batch())
    num_bytes = sum(storage.nbytes() for storage in kept.values() if storage.data_ptr() not in its_own)
    del scores
    return num_bytes


def divided(folder: Path, world: World) -> dict[str, int]:
    """The bytes of a rank's share of the weights, and those that its forward pass saves."""
    world.enter("cpu")
    division = Division(world, torch.device("cpu"), torch.float32, Copies.within("all", world))
    model = division.empty_model(read_model_config(folder))
    places = decoder_places(model.config, dict(model.named_parameters()))
    whole_pass = PolicyPass(model, settings_for("whole"))
    division.divide(whole_pass, model)
    with StoredState(weight_files(folder)) as stored:
        division.fill(dict(model.named_parameters()), places, stored)
    facts = {
        "of_weights": sum(own_part(parameter).nbytes for parameter in model.parameters()),
        "for_backward": bytes_for_backward(whole_pass, model=model),
    }
    world.leave()
    return facts


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the dtypes of gathers and of sums over ranks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: dict[str, set[str]] = {"_allgather_base_": set(), "_reduce_scatter_base_": set()}

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if call.namespace == "c10d" and call.overloadpacket.__name__ in self.dtypes:
            self.dtypes[call.overloadpacket.__name__].add(str(given[1].dtype))
        return call(*given, **(named or {}))


def in_bfloat16(folder: Path, world: World) -> dict[str, Any]:
    trainer = build_trainer(folder, settings_for("whole", compute_dtype="bfloat16"), device="cpu", world=world)
    with Traffic() as traffic:
        metrics = trainer.train_step(trajectories_of(0)).metrics
    trainer.close()
    return {"metrics": metrics, "dtypes": {call: sorted(dtypes) for call, dtypes in traffic.dtypes.items()}}


def thin_adapter(folder: Path, world: World) -> dict[str, Any]:
    settings = settings_for("adapter")
    trainer_spec = settings.trainer.model_copy(update={"lora_rank": 1})
    trainer = build_trainer(folder, replace(settings, trainer=trainer_spec), device="cpu", world=world)
    metrics = [trainer.train_step(trajectories_of(step)).metrics for step in range(2)]
    trainer.close()
    return {"metrics": metrics}


def be_a_rank(world: World, folder: Path, results: Path) -> None:
    for variant in VARIANTS:
        kind, _, activations = variant.partition("/")
        train_variant(world, folder, settings_for(kind, activations=activations), results / variant)
    for name, find in ((DIVIDED, divided), (LOW, in_bfloat16), (THIN, thin_adapter)):
        (results / name).mkdir(exist_ok=True)
        write_facts(find(folder, world), results / name, world)


two_ranks = results_of(be_a_rank)
variant = one_of_these(VARIANTS)


@pytest.mark.long
class TestTwoFsdpRanks(TwoRanksConformance):
    pass


@pytest.mark.long
def test_each_rank_has_its_half_of_every_matrix(two_ranks: Path, make_llama: MakeLlama) -> None:
    whole = sum(parameter.numel() * 4 for parameter in load_decoder(make_llama(), device="cpu").parameters())
    assert [facts_of(two_ranks, DIVIDED, rank)["of_weights"] for rank in (0, 1)] == [whole // 2, whole // 2]


@pytest.mark.long
def test_no_gathered_matrix_is_kept_for_the_backward_pass(two_ranks: Path, make_llama: MakeLlama) -> None:
    """Apart from weights, a rank saves exactly the bytes that one process saves."""
    model = load_decoder(make_llama(dtype="bfloat16"), device="cpu", dtype=torch.float32)
    alone = bytes_for_backward(PolicyPass(model, settings_for("whole")), model=model)
    assert [facts_of(two_ranks, DIVIDED, rank)["for_backward"] for rank in (0, 1)] == [alone, alone]


@pytest.mark.long
def test_gathers_are_bfloat16_and_gradient_sums_float32(two_ranks: Path) -> None:
    first, second = (facts_of(two_ranks, LOW, rank) for rank in (0, 1))
    assert first == second
    assert first["dtypes"] == {"_allgather_base_": ["torch.bfloat16"], "_reduce_scatter_base_": ["torch.float32"]}
    exact = facts_of(two_ranks, "whole/kept")["steps"][0]
    assert first["metrics"]["train/loss"] == pytest.approx(exact["train/loss"], abs=0.02)
    assert first["metrics"]["train/grad_norm"] == pytest.approx(exact["train/grad_norm"], rel=0.05)


@pytest.mark.long
def test_rank_without_rows_of_a_matrix_makes_the_same_steps(two_ranks: Path, make_llama: MakeLlama) -> None:
    """In an adapter of rank 1, A has one row."""
    first, second = (facts_of(two_ranks, THIN, rank)["metrics"] for rank in (0, 1))
    assert first == second and all(metrics["train/skipped"] == 0.0 for metrics in first)
