"""What holds of every schedule's time and tokens, whichever of them is the fastest: that is a result, and never a test.

With no faults and in virtual time, so that every figure is exact.
"""

import pytest

from engine.pipeline.effects import Effect
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.trainer.brain import TrainerBrain
from engine.policy.schedule import PRESETS
from engine.sim.cluster import Brains
from engine.sim.fault_costs import Costs
from engine.sim.scenario import SCHEDULES
from engine.sim.world import World

TAILED = Costs(median_tokens=60.0, max_tokens=2_000, train_s=0.3)
REPLICAS, SLOTS = 4, 16
STEPS, GROUPS, SAMPLES = 6, 16, 4


def world(schedule: str, costs: Costs, *, seed: int, steps: int = STEPS, brains: Brains | None = None) -> World:
    """One step's samples fill every slot once."""
    preset = PRESETS[schedule]
    plan = Plan(
        schedule=preset,
        weight_slots=2 if preset.in_flight == "pin" else 1,
        steps=steps,
        groups_per_step=GROUPS,
        group_size=SAMPLES,
        checkpoint_every=4,
        evaluation_prompts=2,
        evaluate_every=0,
        max_batch=SLOTS,
        sample_deadline_s=10_000.0,
    )
    return World(seed=seed, plan=plan, num_replicas=REPLICAS, costs=costs, brains=brains or Brains())


def trained_tokens(schedule: str, *, seed: int) -> tuple[list[tuple[float, int]], float]:
    """Of each batch, when it came and how many tokens it has; and the end of the run."""
    batches: dict[int, tuple[float, int]] = {}

    class Noting(TrainerBrain):
        def handle(self, message: Message, now: float) -> list[Effect]:
            if isinstance(message, BatchReady):
                tokens = sum(each.num_tokens for group in message.groups for each in group.trajectories)
                batches.setdefault(message.step, (now, tokens))
            return super().handle(message, now)

    outcome = world(schedule, TAILED, seed=seed, brains=Brains(trainer=Noting)).run()
    return list(batches.values()), outcome.virtual_s


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_token_is_trained_before_it_could_be_written(schedule: str) -> None:
    batches, _ = trained_tokens(schedule, seed=1)
    written = 0
    for came_at, tokens in batches:
        written += tokens
        assert written * TAILED.token_s <= came_at * REPLICAS * SLOTS


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_run_takes_at_least_its_training_time(schedule: str) -> None:
    outcome = world(schedule, TAILED, seed=2).run()
    assert outcome.virtual_s >= STEPS * TAILED.train_s
    assert outcome.oracle.ledger["trained"] == STEPS * GROUPS * SAMPLES
    assert outcome.oracle.ledger["open"] == 0


@pytest.mark.long_except("laminar", "sync", "stream", "partial")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_seed_is_the_same_run(schedule: str) -> None:
    first, again = (world(schedule, TAILED, seed=3).run() for _ in range(2))
    assert (first.virtual_s, first.num_events) == (again.virtual_s, again.num_events)
    assert first.oracle.staleness == again.oracle.staleness


@pytest.mark.long
def test_with_no_variance_and_free_training_no_schedule_gains() -> None:
    even = Costs(median_tokens=400.0, sigma=0.0, train_s=0.0)
    times = {schedule: world(schedule, even, seed=1, steps=3).run().virtual_s for schedule in SCHEDULES}
    assert min(times.values()) > 0.97 * times["sync"], times
