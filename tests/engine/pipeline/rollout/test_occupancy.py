"""Occupancy is counted incrementally; a recount of all held work gives the same at any moment."""

from collections.abc import Iterator

import pytest

from engine.pipeline.effects import Effect
from engine.pipeline.messages.message import Message
from engine.pipeline.rollout.brain import RolloutBrain
from engine.pipeline.rollout.workload import Workload
from engine.policy.lineage import WeightsId
from engine.sim.cluster import Brains
from engine.sim.scenario import SCHEDULES, simulate, world_of
from engine.spec.schedules import ScheduleName

pytestmark = pytest.mark.long

SEEDS = 12


def recounted(work: Workload) -> Iterator[tuple[WeightsId, int]]:
    yield from ((running.weights, len(running.samples)) for running in work._running.values())
    yield from ((awaited.weights, len(awaited.task.samples)) for awaited in work._awaited.values())
    yield from ((kept.weights, kept.num_samples) for kept, _ in work._reserved.values())


class Recounting(RolloutBrain):
    def handle(self, message: Message, now: float) -> list[Effect]:
        effects = super().handle(message, now)
        work, held = self._work, list(recounted(self._work))
        assert work.in_use == {weights for weights, _ in held}
        assert work.num_busy == sum(num for _, num in held)
        assert work.num_running == sum(len(running.samples) for running in work._running.values())
        for weights in work.in_use:
            assert work.num_busy_on(weights) == sum(num for its, num in held if its == weights)
        bound = {running.weights for key, running in work._running.items() if key.evaluation is not None}
        bound |= {awaited.weights for awaited in work._awaited.values()}
        bound |= {kept.weights for kept, _ in work._reserved.values()}
        assert work.oldest == min(work.in_use - bound, default=None)
        return effects


def test_counts_equal_a_recount_with_an_age_cap() -> None:
    for seed in range(SEEDS):
        world_of(seed, "laminar", is_capped=True, brains=Brains(rollout=Recounting)).run()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counts_equal_a_recount_under_faults(schedule: ScheduleName) -> None:
    for seed in range(SEEDS):
        simulate(seed, schedule, brains=Brains(rollout=Recounting))
