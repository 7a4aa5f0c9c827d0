"""A scenario: a small job of random shape, its faults, and the run of it. All of it follows from the seed."""

from typing import Literal

from engine.pipeline.plan import Plan
from engine.policy.schedule import schedule_for
from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.sim.world import Outcome, World
from engine.spec.job import ScheduleSpec

ScheduleName = Literal["laminar", "sync"]


def plan_of(seed: int, schedule: ScheduleName) -> Plan:
    chance = Chance(seed, "plan")
    cap = chance.whole(0, 3) if chance.happens(0.3) else None
    steps = chance.whole(2, 8)
    return Plan(
        schedule=schedule_for(ScheduleSpec(name=schedule, max_staleness=cap)),
        steps=steps,
        groups_per_step=chance.whole(1, 6),
        group_size=chance.whole(2, 5),
        checkpoint_every=chance.whole(1, 4),
        evaluation_prompts=chance.whole(1, 12),
        evaluate_every=chance.whole(1, steps) if chance.happens(0.4) else 0,
        max_batch=chance.whole(1, 24),
    )


def simulate(seed: int, schedule: ScheduleName, faults: Faults | None = None) -> Outcome:
    num_replicas = Chance(seed, "replicas").whole(1, 4)
    drawn = Faults.drawn(seed) if faults is None else faults
    return World(seed=seed, plan=plan_of(seed, schedule), num_replicas=num_replicas, faults=drawn).run()


def replay_command(seed: int, schedule: ScheduleName) -> str:
    return f"python -m engine.sim --seed {seed} --schedule {schedule}"
