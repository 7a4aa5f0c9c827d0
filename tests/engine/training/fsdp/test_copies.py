"""Four ranks as two hosts of two, each host with a copy of the weights: the steps of one process, checkpoints that any
layout reads, and what travels between the hosts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from engine.models.families.trained_model import read_model_config
from engine.training.checkpoint.shares import Share
from engine.training.factory import build_trainer
from engine.training.fsdp.copies import Copies
from engine.training.fsdp.division import Division
from engine.training.parts.layout import Place, own_part, rows_of
from engine.training.ranks.passes import PolicyPass
from engine.training.ranks.world import World
from engine.training.step.mini_batch import MicroLoss
from tests.engine.conftest import MakeLlama
from tests.engine.fit.measured.divided_rank import one_of
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
from tests.engine.training.ranks.worlds import read_report, run_ranks, write_report
from tests.engine.training.trainer_conformance import assert_same_content, save, trajectories_of

KINDS: Final = ("whole", "critic", "adapter", "updates")
VARIANTS: Final = (*(f"{kind}/node" for kind in KINDS), "critic/node, one sum an update")
HOSTS: Final = [[0, 1], [2, 3]]
TRAFFIC: Final = "traffic"

pytestmark = pytest.mark.usefixtures("one_thread")


def on_two_hosts(world: World) -> World:
    world.host = f"host-{world.index // 2}"
    return world


class Crossings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collectives of weights and gradients, and their bytes as a whole, by kind and by whether their group spans
    hosts. Sums over all ranks are of metrics."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = call.overloadpacket.__name__.strip("_")
        if call.namespace == "c10d" and name in ("allgather_base", "reduce_scatter_base", "allreduce"):
            group = next(ProcessGroup.unbox(each) for each in given if isinstance(each, torch.ScriptObject))
            ranks = torch_distributed.get_process_group_ranks(group)
            if name != "allreduce" or len(ranks) < 4:
                self._count(name, ranks, given[0] if name == "allreduce" else given[:2])
        return call(*given, **(named or {}))

    def _count(self, name: str, ranks: list[int], tensors: Sequence[Tensor]) -> None:
        where = "within" if any(set(ranks) <= set(host) for host in HOSTS) else "between"
        self.calls[f"{name} {where}"] += 1
        self.num_bytes[f"{name} {where}"] += max(tensor.nbytes for tensor in tensors)


def traffic(folder: Path, world: World, shard_within: str) -> dict[str, Any]:
    trainer = build_trainer(folder, settings_for("whole", shard_within=shard_within), device="cpu", world=world)
    passes: list[bool] = []
    backward = trainer._backward

    def counted(losses: MicroLoss) -> None:
        passes.append(losses.is_last)
        backward(losses)

    trainer._backward = counted  # type: ignore[method-assign]
    with Crossings() as crossings:
        trainer.train_step(trajectories_of(0, num=32))
    facts = {
        "passes": len(passes),
        "calls": crossings.calls,
        "bytes": crossings.num_bytes,
        "rows": sum(own_part(each).nbytes for each in trainer._model.parameters()),
        "own": [own_part(each).sum().item() for each in trainer._model.parameters()],
    }
    trainer.close()
    return facts


def be_a_rank(world: World, folder: Path, results: Path) -> None:
    on_two_hosts(world)
    for variant in VARIANTS:
        kind, _, how = variant.partition("/")
        sums = "update" if "one sum" in how else None
        mine = results / variant
        train_variant(world, folder, settings_for(kind, shard_within="node", gradient_sums=sums), mine)
        one_copy = build_trainer(folder, settings_for(kind), device="cpu", world=world)
        one_copy.load(mine / "trained")
        save(one_copy, mine / "one-copy")
        one_copy.close()
    for within in ("all", "node"):
        (results / TRAFFIC / within).mkdir(exist_ok=True, parents=True)
        write_facts(traffic(folder, world, within), results / TRAFFIC / within, world)


two_ranks = results_of(be_a_rank, num_ranks=4, kinds=KINDS)  # the results of four
variant = one_of_these(VARIANTS)


@pytest.mark.long
class TestTwoHostsOfTwoRanks(TwoRanksConformance):
    NUM_RANKS: ClassVar = 4


@pytest.mark.long
def test_checkpoint_with_copies_loads_into_one_copy(two_ranks: Path, variant: str) -> None:
    assert_same_content(two_ranks / variant / "one-copy", two_ranks / variant / "trained")


@pytest.mark.long
def test_each_rank_of_four_writes_a_quarter_of_the_state(two_ranks: Path) -> None:
    files = sorted((two_ranks / "whole" / "node" / "trained").glob("state-*"))
    sizes = [file.stat().st_size for file in files]
    assert len(sizes) == 4 and max(sizes) - min(sizes) < 0.25 * max(sizes)


@pytest.mark.long
def test_ranks_of_a_shard_have_the_same_half_bit_for_bit(two_ranks: Path) -> None:
    node, every = ([facts_of(two_ranks / TRAFFIC, within, rank) for rank in range(4)] for within in ("node", "all"))
    assert node[0]["own"] == node[2]["own"] != node[1]["own"] == node[3]["own"]
    assert [each["rows"] for each in node] == pytest.approx([2 * each["rows"] for each in every], rel=0.01)


@pytest.mark.long
def test_hosts_exchange_one_sum_of_gradients_an_update(two_ranks: Path) -> None:
    """With one copy every gather and every sum spans the hosts, once for each micro-batch and layer."""
    node, every = (facts_of(two_ranks / TRAFFIC, within) for within in ("node", "all"))
    num_passes = node["passes"]
    assert num_passes == every["passes"] > 2
    assert set(every["calls"]) == {"allgather_base between", "reduce_scatter_base between"}
    assert set(node["calls"]) == {"allgather_base within", "reduce_scatter_base within", "allreduce between"}
    assert node["calls"]["allgather_base within"] == every["calls"]["allgather_base between"]
    summed = node["calls"]["reduce_scatter_base within"]
    assert summed == every["calls"]["reduce_scatter_base between"] == num_passes * node["calls"]["allreduce between"]
    # A shard of the gradients, each once.
    whole = every["bytes"]["reduce_scatter_base between"] / num_passes
    assert node["bytes"]["allreduce between"] == pytest.approx(whole / 2, rel=0.01)


def refuse_uneven_hosts(world: World, folder: Path, results: Path) -> None:
    on_two_hosts(world)
    with pytest.raises(ValueError) as refusal:
        build_trainer(folder, settings_for("whole", shard_within="node"), device="cpu", world=world)
    write_report(results, world, str(refusal.value))
    trainer = build_trainer(folder, settings_for("whole"), device="cpu", world=world)
    trainer.close()


@pytest.mark.long
def test_uneven_hosts_are_refused_on_every_rank(make_llama: MakeLlama, tmp_path: Path) -> None:
    assert run_ranks(3, refuse_uneven_hosts, make_llama(), tmp_path) == [0, 0, 0]
    reports = {read_report(tmp_path, rank) for rank in range(3)}
    assert len(reports) == 1
    assert "its 3 are 2, 1 a host. Set resources.trainer_devices" in reports.pop()


# In the gate: one rank of four, whose collectives carry nothing -------------------------------------------------------


def test_hosts_sum_after_the_last_micro_batch_only(make_llama: MakeLlama) -> None:
    with one_of(4) as world:
        division = Division(world, torch.device("cpu"), torch.float32, Copies.of(HOSTS, own_rank=0))
        model = division.empty_model(read_model_config(make_llama()))
        whole_pass = PolicyPass(model, settings_for("whole"))
        division.divide(whole_pass, model)
        calls = []
        for is_last in (False, False, True, False, True):
            division.begin_backward(is_last=is_last)
            with Crossings() as crossings:
                whole_pass(micro_batch())[0].sum().backward()
            calls.append(crossings.calls)
    num_parts = len(model.layers) + 1
    in_host = {"allgather_base within": 2 * num_parts, "reduce_scatter_base within": num_parts}
    between = in_host | {"allreduce between": num_parts}
    assert calls == [in_host, in_host, between, in_host, between]


@pytest.mark.parametrize("num_rows", [1, 3, 7, 64])
def test_copies_write_every_value_exactly_once(num_rows: int) -> None:
    place = Place(torch.Size((num_rows, 5)), (("w", torch.Size((num_rows, 5)), 0),))
    values, written = torch.arange(num_rows * 5.0), torch.zeros(num_rows * 5)
    for rank in range(4):
        copies = Copies.of(HOSTS, own_rank=rank)
        rows = rows_of(copies.own_shard, copies.num_shards, num_rows)
        held = range(rows.start * 5, rows.stop * 5)
        part = Share(place, held, values[held.start : held.stop]).part(copies.own_copy, copies.num_copies)
        assert torch.equal(part.values, values[part.span.start : part.span.stop])
        written[part.span.start : part.span.stop] += 1
    assert written.tolist() == [1.0] * len(written)
