"""The training data of a large run by age: the versions that wrote each part of every trained answer.

The run is simulated (engine/sim/fleet) at its best split, with the brains that run live. A learner has fewer prompts a
step than it: it takes its prompts evenly from each batch, so that what ended first and last has its share.
The steps of a short run repeat: after its first steps the ages are stationary.

Invariant: an age is the version that is trained less the version that wrote, as the trainer weighs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.pipeline.effects import TrainOn
from engine.pipeline.records import Trajectory
from engine.policy.lineage import Lineage
from engine.policy.schedule import schedule_for
from engine.sim.compare.contestants import OF_THE_GRID
from engine.sim.compare.grid import Cell, Extent, warmed
from engine.sim.compare.splits import splits
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup
from engine.spec.job import ScheduleSpec
from engine.spec.schedules import SCHEDULES

GPUS: Final = 64
OF_PRESETS: Final = {"sync_split": "sync"}
"""Contestants whose schedule has another name in a spec."""


@dataclass(frozen=True, slots=True)
class Part:
    share: float
    """Of the answer's tokens."""
    age: int


Answer = tuple[Part, ...]
"""From its first token to its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    steps: Sequence[Sequence[Sequence[Answer]]]
    """Of each its prompts, of each of those its samples."""
    step_s: float
    staleness: float
    """The mean, of answers by their oldest part."""

    def prompts_of(self, step: int, num: int, samples: int) -> list[list[Answer]]:
        """`step`: from 1. Nothing is older than the model that the learner began with."""
        groups = self.steps[(step - 1) % len(self.steps)]
        taken = [groups[at * len(groups) // num] for at in range(num)]
        return [[_no_older(group[at % len(group)], step - 1) for at in range(samples)] for group in taken]


def traced(contestant: str, *, model: str, bound: int | None, groups: int, steps: int, seed: int) -> Trace:
    """`bound`: of staleness; None: the schedule's own. `groups`: of the large run's batch."""
    batches: list[TrainOn] = []
    setup = setup_of(contestant, model=model, bound=bound, groups=groups, steps=steps, seed=seed)
    outcome = Fleet(setup, on_batch=batches.append).run()
    return Trace(
        steps=[_answers(effect) for effect in batches[-steps:]],
        step_s=outcome.step_s,
        staleness=outcome.staleness_mean,
    )


def setup_of(contestant: str, *, model: str, bound: int | None, groups: int, steps: int, seed: int) -> Setup:
    extent = Extent(groups_per_step=groups, steps=steps, seeds=(seed,), num_splits=1)
    setup = Cell(workload="math", model=model, gpus=GPUS, schedule=contestant).setup(extent)
    name = OF_PRESETS.get(contestant, contestant)
    if bound is not None and name in SCHEDULES:
        spec = ScheduleSpec(name=name, max_staleness=bound)
        setup = replace(setup, schedule=schedule_for(spec, weight_slots=setup.slots.num))
    best = [each for each in splits(setup, num=1) if not each.why_not]
    if not best:
        raise ValueError(f"{contestant}: {model} does not fit on {GPUS} devices: {setup.why_not}")
    return warmed(best[0], extent).with_seed(seed)


def _answers(effect: TrainOn) -> list[list[Answer]]:
    at = effect.step - 1
    return [[_answer(each, effect.lineage, at) for each in group.trajectories] for group in effect.groups]


def _answer(trajectory: Trajectory, lineage: Lineage, at: int) -> Answer:
    whole = sum(run.num_tokens for run in trajectory.runs)
    return tuple(Part(run.num_tokens / whole, lineage.staleness(run.weights, at=at)) for run in trajectory.runs)


def _no_older(answer: Answer, most: int) -> Answer:
    return tuple(replace(part, age=min(part.age, most)) for part in answer)


CONTESTANT_NAMES: Final = OF_THE_GRID
