"""The schedules on the same trace, with no faults and in virtual time, so every figure is exact.

On a heavy tail: sync < one_step < stream <= partial <= laminar. With no variance and training for nothing, nothing is
gained by any of them.
"""

from dataclasses import replace

import pytest

from engine.pipeline.plan import Plan
from engine.policy.schedule import PRESETS
from engine.sim.costs import Costs
from engine.sim.world import World

ORDER = ("sync", "one_step", "stream", "partial", "laminar")
TAILED = Costs(median_tokens=60.0, max_tokens=2_000, train_s=0.3)


def seconds(schedule: str, costs: Costs, *, seed: int, steps: int = 12, repack: bool = True) -> float:
    preset = PRESETS[schedule]
    plan = Plan(
        schedule=preset if repack else replace(preset, repack=False),
        steps=steps,
        groups_per_step=16,
        group_size=4,
        checkpoint_every=4,
        evaluation_prompts=2,
        evaluate_every=0,
        max_batch=16,
        sample_deadline_s=10_000.0,
    )
    return World(seed=seed, plan=plan, num_replicas=4, costs=costs).run().virtual_s


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_a_heavy_tail_each_schedule_is_faster_than_the_one_before(seed: int) -> None:
    times = [seconds(schedule, TAILED, seed=seed) for schedule in ORDER]
    assert times == sorted(times, reverse=True) and len(set(times)) == len(times), dict(zip(ORDER, times, strict=True))
    assert times[0] > 2 * times[-1], "sync pays for the tail in every step"


def test_with_no_variance_and_free_training_no_schedule_gains() -> None:
    even = Costs(median_tokens=400.0, sigma=0.0, train_s=0.0)
    times = {schedule: seconds(schedule, even, seed=1) for schedule in ORDER}
    assert min(times.values()) > 0.97 * times["sync"], times


def test_with_no_variance_those_that_overlap_are_alike() -> None:
    even = Costs(median_tokens=60.0, sigma=0.0, train_s=2.0)
    times = {schedule: seconds(schedule, even, seed=1) for schedule in ORDER[1:]}
    assert max(times.values()) < 1.02 * min(times.values()), times


def test_repack_gains_on_a_tail() -> None:
    seeds = (1, 2, 3)
    with_it = sum(seconds("laminar", TAILED, seed=seed) for seed in seeds)
    without = sum(seconds("laminar", TAILED, seed=seed, repack=False) for seed in seeds)
    assert with_it < without
