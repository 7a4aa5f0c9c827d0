"""The grid: schedules × models × devices × workloads, each cell at the best of its splits, over seeds.

    the best two splits by closed form ──▶ both for a few steps of the first seed ──▶ the better one continues, and runs
                                                                                      the other seeds

Invariants:
- every schedule of a cell has the same prompts, lengths and number of devices;
- nothing is simulated twice: the steps that decide between the splits are the first ones of the measurement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean
from typing import Final

from engine.sim.compare.contestants import CONTESTANTS, OF_THE_GRID, Contestant
from engine.sim.compare.splits import longest_s, splits, step_s
from engine.sim.costs.constants import AS_THEY_STAND, Book
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.environment import FEWEST_CALLS, MOST_CALLS
from engine.sim.costs.lengths import LONGEST_PROMPT, Lengths
from engine.sim.costs.memory import room_for_kv
from engine.sim.costs.models import MODELS, Model
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.outcome import Outcome
from engine.sim.fleet.setup import Setup, Workload


@dataclass(frozen=True, kw_only=True)
class Cell:
    workload: Workload
    model: str
    gpus: int
    schedule: str

    def setup(self, extent: "Extent") -> Setup:
        """The set-up with devices split in halves; `splits` finds better ones."""
        contestant, model = CONTESTANTS[self.schedule], MODELS[self.model]
        train = self.gpus if contestant.is_colocated else self.gpus // 2
        return Setup(
            device=DEVICES["H800"],
            model=model,
            schedule=contestant.schedule,
            train_devices=train,
            rollout_devices=self.gpus if contestant.is_colocated else self.gpus - train,
            is_colocated=contestant.is_colocated,
            tp=tensor_parallel(model, contestant),
            slots=contestant.slots_with(lora_rank=0),
            workload=self.workload,
            lengths=Lengths.of(extent.book),
            book=extent.book,
            steps=extent.steps,
            warm_steps=extent.warm_steps,
            groups_per_step=extent.groups_per_step,
            mini_batch=extent.groups_per_step * 4,  # a quarter of 16 samples of each
        )

    def work(self, extent: "Extent") -> float:
        """The cost of simulating the cell, to start the largest first: turns of all samples, times steps."""
        setup = self.setup(extent)
        turns = 1 if setup.tools is None else 1 + (FEWEST_CALLS + MOST_CALLS) / 2
        return turns * (setup.steps + warmed(setup, extent).warm_steps) if not setup.why_not else 0.0


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is simulated."""

    workloads: Sequence[Workload] = ("math", "tools")
    models: Sequence[str] = ("7B", "32B", "72B")
    gpus: Sequence[int] = (16, 64, 256, 1_024)
    schedules: Sequence[str] = OF_THE_GRID
    seeds: Sequence[int] = (1, 2, 3)
    steps: int = 2
    """Even: schedules with windows of two have a long step and a short one."""
    warm_steps: int = 2
    """The minimum; more if steps are short (`warmed`)."""
    most_warm_steps: int = 6
    deciding_steps: int = 2
    """The measured steps that decide between the splits."""
    groups_per_step: int = 512
    num_splits: int = 2
    book: Book = AS_THEY_STAND

    def cells(self) -> Iterator[Cell]:
        for workload in self.workloads:
            for model in self.models:
                for gpus in self.gpus:
                    for schedule in self.schedules:
                        yield Cell(workload=workload, model=model, gpus=gpus, schedule=schedule)


WHOLE: Final = Extent()
# A sixteenth of the batch on a sixteenth of the devices, so that the work per device is as at 256.
QUICK: Final = Extent(
    workloads=("math",),
    models=("7B",),
    gpus=(16,),
    seeds=(1, 2),
    steps=4,
    warm_steps=3,
    most_warm_steps=3,
    groups_per_step=32,
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A simulated cell at the better of its splits, or a cell that does not fit."""

    cell: Cell
    why_not: str = ""
    setup: Setup | None = None
    outcomes: Sequence[Outcome] = ()
    """By seed."""


def tensor_parallel(model: Model, contestant: Contestant) -> int:
    """The usual width, or twice that if the copies of the weights need it."""
    device, longest = DEVICES["H800"], Lengths().longest + LONGEST_PROMPT
    fitting = [
        tp
        for tp in (model.tensor_parallel, 2 * model.tensor_parallel)
        if tp <= device.per_host
        and not room_for_kv(device, model, tp=tp, slots=contestant.slots, at_least_tokens=longest).why_not
    ]
    return fitting[0] if fitting else model.tensor_parallel


def run_cell(cell: Cell, extent: Extent) -> Ran:
    setup = cell.setup(extent)
    tried = [each for each in splits(setup, num=extent.num_splits) if not each.why_not]
    if not tried:
        return Ran(cell=cell, why_not=setup.why_not or "no split of the devices holds both training and a replica")
    begun = [Fleet(warmed(each, extent).with_seed(extent.seeds[0])) for each in tried]
    first = begun[0] if len(begun) == 1 else max(begun, key=lambda fleet: _decides(fleet, extent))
    best = first.setup
    rest = [Fleet(best.with_seed(seed)).run() for seed in extent.seeds[1:]]
    return Ran(cell=cell, setup=best, outcomes=(first.run(), *rest))


def warmed(setup: Setup, extent: Extent) -> Setup:
    """Replicas begin all at once. Before it is measured, the longest answer could have been written twice since."""
    steps = ceil(2 * longest_s(setup) / step_s(setup))
    return replace(setup, warm_steps=min(max(steps, extent.warm_steps), extent.most_warm_steps))


def _decides(fleet: Fleet, extent: Extent) -> float:
    return fleet.run_until(fleet.setup.warm_steps + min(extent.steps, extent.deciding_steps)).tokens_per_s


def tokens_per_s(ran: Ran) -> float:
    return mean(outcome.tokens_per_s for outcome in ran.outcomes)
