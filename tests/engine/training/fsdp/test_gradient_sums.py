"""Gradients that two ranks sum once an update: the steps of sums after each micro-batch, with fewer collectives."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch

from engine.fit.planning import plan_trainer
from engine.fit.trainer import affords_one_sum, trainer_need
from engine.models.families.trained_model import read_model_config
from engine.spec.job import JobSpec
from engine.training.factory import build_trainer
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.fsdp.gradient_sums import plan_of, sums_once
from engine.training.parts.layout import own_part
from engine.training.ranks.passes import PolicyPass
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.step.activations import shape_of
from tests.engine.conftest import MakeLlama
from tests.engine.fit.measured.divided_rank import one_of
from tests.engine.training.fsdp.test_copies import Crossings
from tests.engine.training.fsdp.test_ranks import micro_batch
from tests.engine.training.ranks.two_ranks import (
    TwoRanksConformance,
    facts_of,
    one_of_these,
    results_of,
    settings_for,
    train_variant,
    write_facts,
)
from tests.engine.training.trainer_conformance import ROUNDING, trajectories_of

SUMS: Final = ("micro_batch", "update")
KINDS: Final = ("whole", "critic", "adapter", "updates")
VARIANTS: Final = tuple(f"{kind}/update" for kind in KINDS)
TRAFFIC: Final = "traffic"

pytestmark = pytest.mark.usefixtures("one_thread")


def traffic(folder: Path, world: World, sums: str) -> dict[str, Any]:
    """Of one step in bfloat16, with the gradients of its update."""
    spec = settings_for("whole", gradient_sums=sums, compute_dtype="bfloat16")
    trainer = build_trainer(folder, spec, device="cpu", world=world)
    gradients: list[float] = []
    part: Any = trainer._sharding.parts[0]
    clip = part.clip

    def kept() -> float:
        norm: float = clip()
        own = [each.grad for each in trainer._model.parameters()]
        gradients.extend(torch.cat([own_part(each).flatten() for each in own if each is not None]).tolist())
        return norm

    part.clip = kept
    with Crossings() as crossings:
        metrics = trainer.train_step(trajectories_of(0, num=32)).metrics
    trainer.close()
    return {"calls": crossings.calls, "bytes": crossings.num_bytes, "gradients": gradients, "metrics": metrics}


def be_a_rank(world: World, folder: Path, results: Path) -> None:
    for variant in VARIANTS:
        kind, _, sums = variant.partition("/")
        train_variant(world, folder, settings_for(kind, gradient_sums=sums), results / variant)
    for sums in SUMS:
        (results / TRAFFIC / sums).mkdir(exist_ok=True, parents=True)
        write_facts(traffic(folder, world, sums), results / TRAFFIC / sums, world)


two_ranks = results_of(be_a_rank, kinds=KINDS)
variant = one_of_these(VARIANTS)


@pytest.mark.long
class TestTwoRanksThatSumOnceAnUpdate(TwoRanksConformance):
    pass


@pytest.mark.long
def test_one_sum_an_update_sends_gradients_once(two_ranks: Path) -> None:
    each, once = (facts_of(two_ranks / TRAFFIC, sums) for sums in SUMS)
    summed, gathered = "reduce_scatter_base within", "allgather_base within"
    num_passes = each["calls"][summed] // once["calls"][summed]
    assert num_passes > 2
    for counted in ("calls", "bytes"):
        assert each[counted][summed] == num_passes * once[counted][summed]
        assert each[counted][gathered] == once[counted][gathered]


@pytest.mark.long
def test_one_sum_gives_the_same_gradients_within_rounding(two_ranks: Path) -> None:
    """In bfloat16: a micro-batch's gradient is rounded before either sum, and both sums are float32."""
    for rank in (0, 1):
        each, once = (torch.tensor(facts_of(two_ranks / TRAFFIC, sums, rank)["gradients"]) for sums in SUMS)
        assert each.abs().max() > 0 and (each - once).abs().max() <= ROUNDING * each.abs().max()
    norms = [facts_of(two_ranks / TRAFFIC, sums)["metrics"]["train/grad_norm"] for sums in SUMS]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


# In the gate: one rank, whose collectives carry nothing, and the choice -----------------------------------------------


def test_sums_wait_for_the_last_micro_batch(make_llama: MakeLlama) -> None:
    with one_of(2) as world:
        copies = Copies.of([[0, 1]], own_rank=0)
        division = Division(world, torch.device("cpu"), torch.bfloat16, copies, sums_once=True)
        model = division.empty_model(read_model_config(make_llama()))
        whole_pass = PolicyPass(model, settings_for("whole", compute_dtype="bfloat16"))
        division.divide(whole_pass, model)
        calls = []
        for is_last in (False, False, True, False, True):
            division.begin_backward(is_last=is_last)
            with Crossings() as crossings:
                whole_pass(micro_batch())[0].sum().backward()
            calls.append(crossings.calls["reduce_scatter_base within"])
    num_parts = len(model.layers) + 1
    assert calls == [0, 0, num_parts, 0, num_parts]


SPECS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"algorithm": {"name": "ppo", "kl": {"coefficient": 0.1}}, "optimizer": {"moments": "float8"}},
    {"trainer": {"lora_rank": 4, "sequence_parallel": 2, "micro_batch_tokens": 64}},
    {"algorithm": {"teacher": {"source": "demo"}}, "optimizer": {"offload": True}},
)


def spec_of(document: dict[str, Any], **trainer: Any) -> JobSpec:
    trainer = {"compute_dtype": "bfloat16", **document.get("trainer", {}), **trainer}
    whole = {"name": "t", "resources": {"trainer_devices": 4}, **document, "trainer": trainer}
    return JobSpec.model_validate(whole)


@pytest.mark.parametrize("document", SPECS, ids=str)
@pytest.mark.parametrize("within", ["all", "node"])
def test_trainer_plans_as_the_fit_does(make_llama: MakeLlama, document: dict[str, Any], within: str) -> None:
    config, spec = read_model_config(make_llama()), spec_of(document, shard_within=within)
    copies = Copies.of([[0, 1], [2, 3]] if within == "node" else [[0, 1, 2, 3]], own_rank=0)
    own = plan_of(TrainerSettings.of(spec), config, torch.device("cuda"), copies)
    teacher = own.teacher if spec.algorithm.has_teacher else None
    expected = plan_trainer(spec, shape_of(config), teacher=teacher, devices_per_host=2)
    assert trainer_need(shape_of(config), own).lines == trainer_need(shape_of(config), expected).lines


def test_all_ranks_sum_once_only_if_each_has_the_memory(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    config, spec = read_model_config(make_llama()), spec_of({})
    settings, copies = TrainerSettings.of(spec), Copies.of([[0, 1, 2, 3]], own_rank=0)
    shape, gpu = shape_of(config), torch.device("cuda")
    plan = plan_of(settings, config, gpu, copies)
    [enough] = [size for size in _sizes() if affords_one_sum(shape, plan, size)][:1]

    def chosen(own_bytes: int, others: bytes, device: torch.device = gpu) -> bool:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=own_bytes))
        world: Any = SimpleNamespace(exchange=lambda own: [own, others])
        return sums_once(settings, config, device, copies, world)

    assert chosen(enough, b"fits") and not chosen(enough, b"") and not chosen(enough // 2, b"fits")
    assert not chosen(enough, b"fits", torch.device("cpu"))


def _sizes() -> list[int]:
    return [2**power for power in range(20, 48)]
