"""A cell: a device, a model, the length of contexts and the time between updates; and a run in it.

Only replicas limit the speed: a batch is what full replicas write in five quarters of the time between two updates. So
whatever a design spends on versions (caches read again, memory for copies, replicas that empty) reduces its tokens/s.

Invariant: all designs of a cell have the same devices, batch and lengths.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

from engine.sim.compare.contestants import CONTESTANTS, Contestant
from engine.sim.compare.splits import Moments, moments
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.models import MODELS
from engine.sim.costs.training import fewest_devices
from engine.sim.fleet.setup import Setup

REPLICAS: Final = 8
GROUP: Final = 8
BEYOND: Final = 1.25
"""The tokens to write, over those that full replicas could write."""
LONGEST_OVER_CONTEXT: Final = 4
MOST_ROWS: Final = 512
FEWEST_SAMPLES: Final = 2_000
"""Samples trained in the measured steps: with fewer the figures are noise."""
FEWEST_STEPS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    device: str
    model: str
    context: int
    """The mean number of tokens that a row reads."""
    every_s: float
    """From one update to the next."""

    def __str__(self) -> str:
        return f"{self.model} on {self.device}, {self.context:,} tokens, {self.every_s:g} s"


@dataclass(frozen=True)
class Place:
    """What all designs of a cell share."""

    cell: Cell

    @cached_property
    def lengths(self) -> Lengths:
        """Log-normal, their median such that rows read the context wanted."""
        longest = LONGEST_OVER_CONTEXT * self.cell.context
        low, high = 1.0, float(longest)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if _context(Lengths(median=middle, longest=longest)) < self.cell.context
                else (low, middle)
            )
        return Lengths(median=low, longest=longest)

    @cached_property
    def moments(self) -> Moments:
        return moments(self.lengths)

    @cached_property
    def _of_one_version(self) -> Setup:
        model = MODELS[self.cell.model]
        return self._setup(CONTESTANTS["partial"], groups=1, tp=model.tensor_parallel)

    @cached_property
    def why_not(self) -> str:
        return self._of_one_version.why_not

    @cached_property
    def rows(self) -> int:
        """The rows of a full replica."""
        return max(1, min(MOST_ROWS, self._of_one_version.room.kv_tokens // self.cell.context))

    @cached_property
    def step_s(self) -> float:
        return self._of_one_version.decode.step_s(self.rows, self.rows * self.cell.context)

    @cached_property
    def groups_per_step(self) -> int:
        tokens = BEYOND * REPLICAS * self.rows / self.step_s * self.cell.every_s
        return max(1, round(tokens / self.moments.mean / GROUP))

    @cached_property
    def in_flight(self) -> float:
        """Steps' worth of samples that full replicas hold."""
        return REPLICAS * self.rows / (self.groups_per_step * GROUP)

    def run(self, contestant: Contestant, *, lead: float | None, seed: int) -> Setup:
        """`lead`: in steps; None: the schedule's default."""
        setup = self._setup(contestant, groups=self.groups_per_step, tp=MODELS[self.cell.model].tensor_parallel)
        schedule = setup.schedule if lead is None else replace(setup.schedule, lead_steps=lead)
        alive_steps = self.moments.by_size * self.step_s / self.cell.every_s
        return replace(
            setup,
            schedule=schedule,
            seed=seed,
            warm_steps=ceil(1 + schedule.lead_steps + 1.5 * alive_steps),
            steps=max(FEWEST_STEPS, ceil(FEWEST_SAMPLES / (self.groups_per_step * GROUP))),
        )

    def _setup(self, contestant: Contestant, *, groups: int, tp: int) -> Setup:
        device, model = DEVICES[self.cell.device], MODELS[self.cell.model]
        return Setup(
            device=device,
            model=model,
            schedule=contestant.schedule,
            train_devices=fewest_devices(device, model),
            rollout_devices=REPLICAS * tp,
            tp=tp,
            slots=contestant.slots,
            lengths=self.lengths,
            groups_per_step=groups,
            group_size=GROUP,
            mini_batch=groups * GROUP,
            max_batch=MOST_ROWS,
            train_every_s=self.cell.every_s,
        )


def _context(lengths: Lengths) -> float:
    """The mean context of a row at a random time, when it is in the middle of its answer."""
    return lengths.prompt + moments(lengths).by_size / 2
