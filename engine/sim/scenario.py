"""A scenario: a small job of random shape, its faults and its run, all determined by the seed."""

from dataclasses import replace
from typing import Final, get_args

from engine.pipeline.plan import Plan
from engine.policy.schedule import schedule_for
from engine.sim.chance import Chance
from engine.sim.cluster import Brains
from engine.sim.fault_costs import Costs
from engine.sim.faults import Faults, from_outside
from engine.sim.world import Outcome, World
from engine.spec.job import ScheduleSpec
from engine.spec.schedules import ScheduleName

SCHEDULES: Final[tuple[ScheduleName, ...]] = get_args(ScheduleName)


def plan_of(seed: int, schedule: ScheduleName, *, is_capped: bool = False) -> Plan:
    """`is_capped`: laminar, with several slots and an age cap."""
    chance = Chance(seed, "plan")
    cap = chance.whole(0, 3) if chance.happens(0.3) else None
    steps = chance.whole(2, 7)
    num_replicas = num_replicas_of(seed)
    slots, failures = Chance(seed, "slots"), Chance(seed, "failures")
    groups_per_step, group_size = chance.whole(1, 6), chance.whole(2, 5)
    weight_slots = slots.whole(1 + is_capped, 3) if schedule == "laminar" else 1
    age_cap = slots.whole(1, 3) if is_capped else None
    return Plan(
        schedule=schedule_for(
            ScheduleSpec(name=schedule, max_staleness=cap, age_cap=age_cap), weight_slots=weight_slots
        ),
        weight_slots=weight_slots,
        steps=steps,
        groups_per_step=groups_per_step,
        group_size=group_size,
        checkpoint_every=chance.whole(1, 6),
        evaluation_prompts=chance.whole(1, 6),
        evaluate_every=chance.whole(1, steps) if chance.happens(0.4) else 0,
        evaluation_samples=Chance(seed, "evaluation samples").whole(1, 3),
        max_batch=chance.whole(1, 24),
        num_spare=chance.whole(1, 2) if chance.happens(0.15) else 0,
        min_group=failures.whole(1, group_size) if failures.happens(0.6) else None,
        replaces_failed=failures.happens(0.3),
        filters=chance.happens(0.2),
        sample_deadline_s=6 * costs_of(seed).token_s * costs_of(seed).max_tokens + 2 * costs_of(seed).longest_s,
        stream_every_s=1.0 if chance.happens(0.5) else 0.0,
        num_relays=min(num_replicas, chance.whole(1, 3)),
        num_environments=Chance(seed, "environments").whole(1, 3),
    )


def evaluation_of(seed: int, schedule: ScheduleName) -> World:
    """A job that trains nothing: it evaluates the weights of a checkpoint, or its model's initial weights."""
    chance = Chance(seed, "evaluation")
    plan = replace(plan_of(seed, schedule), steps=0, evaluate_every=0, evaluation_prompts=chance.whole(1, 40))
    start_step = chance.whole(1, 9) if chance.happens(0.8) else 0
    return World(
        seed=seed,
        plan=plan,
        num_replicas=num_replicas_of(seed),
        costs=costs_of(seed),
        faults=faults_of(seed),
        start_step=start_step,
    )


def resumed_of(
    seed: int,
    schedule: ScheduleName,
    *,
    faults: Faults | None = None,
    brains: Brains | None = None,
    base_is_due: bool = True,
    is_of_another_job: bool = False,
) -> World:
    """A later attempt of a job that trains; no earlier one has evaluated version 0. `is_of_another_job`: the first
    attempt of a job that starts from another's checkpoint."""
    plan = plan_of(seed, schedule)
    start_step = Chance(seed, "resumed").whole(1, plan.steps)
    return World(
        seed=seed,
        plan=replace(plan, starts_at=start_step if is_of_another_job else 0),
        num_replicas=num_replicas_of(seed),
        costs=costs_of(seed),
        faults=faults_of(seed) if faults is None else faults,
        brains=brains or Brains(),
        start_step=start_step,
        base_is_due=base_is_due and not is_of_another_job,
    )


def costs_of(seed: int) -> Costs:
    """In every third job a tail of long answers outlives several steps; some disks are slow; in every third job any
    work may take long, up to twelve times as long as a part may be silent."""
    chance, work = Chance(seed, "costs"), Chance(seed, "long work")
    has_long_work = work.happens(0.35)
    has_long_tails, has_slow_disk = chance.happens(0.35), chance.happens(0.3)
    return Costs(
        median_tokens=60.0 if has_long_tails else 20.0,
        max_tokens=1_000 if has_long_tails else 400,
        persist_s=0.1 if has_slow_disk else 0.002,
        long_work=work.uniform(0.01, 0.15) if has_long_work else 0.0,
        longest_s=60.0 if has_long_work else 0.0,
    )


def num_replicas_of(seed: int) -> int:
    return (1, 2, 2, 3, 3, 4)[Chance(seed, "replicas").whole(0, 5)]


def faults_of(seed: int) -> Faults:
    faults = Faults.drawn(seed)
    requests = from_outside(seed, num_replicas=num_replicas_of(seed))
    return replace(faults, blows=(*faults.blows, *requests))


def world_of(
    seed: int,
    schedule: ScheduleName,
    *,
    faults: Faults | None = None,
    brains: Brains | None = None,
    is_capped: bool = False,
) -> World:
    return World(
        seed=seed,
        plan=plan_of(seed, schedule, is_capped=is_capped),
        num_replicas=num_replicas_of(seed),
        costs=costs_of(seed),
        faults=faults_of(seed) if faults is None else faults,
        brains=brains or Brains(),
    )


def simulate(seed: int, schedule: ScheduleName, faults: Faults | None = None, brains: Brains | None = None) -> Outcome:
    return world_of(seed, schedule, faults=faults, brains=brains).run()


def replay_command(
    seed: int,
    schedule: ScheduleName,
    *,
    evaluates: bool = False,
    is_capped: bool = False,
    is_resumed: bool = False,
    is_of_another_job: bool = False,
) -> str:
    options = " --evaluation" * evaluates + " --age-cap" * is_capped + " --resumed" * is_resumed
    options += " --from-another-job" * is_of_another_job
    return f"python -m engine.sim --seed {seed} --schedule {schedule}{options}"
