"""The brains under all kinds of faults. A failing seed prints the command that replays it."""

from functools import cache

import pytest

from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.sim.scenario import SCHEDULES, replay_command, simulate, world_of
from engine.sim.world import Outcome
from engine.spec.schedules import ScheduleName

SEEDS = 40  # of each of six schedules; `test_driver` and `test_resize` draw their own weather for as many again
SOAK_SEEDS = 10_000


@cache
def run(seed: int, schedule: ScheduleName) -> Outcome:
    try:
        return simulate(seed, schedule)
    except Exception as error:  # noqa: BLE001 - any failure must name its seed
        pytest.fail(f"{type(error).__name__}: {error}\n{replay_command(seed, schedule)}")


@pytest.mark.proof
@pytest.mark.long_except("laminar")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_fault_order_breaks_an_invariant(schedule: ScheduleName) -> None:
    for seed in range(SEEDS):
        run(seed, schedule)


@pytest.mark.long
def test_no_fault_order_breaks_an_invariant_with_an_age_cap() -> None:
    mixed = 0
    for seed in range(SEEDS):
        world = world_of(seed, "laminar", is_capped=True)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - as above
            pytest.fail(f"{type(error).__name__}: {error}\n{replay_command(seed, 'laminar', is_capped=True)}")
        mixed += world.oracle.num_carried_on
    assert mixed > 0, "new weights were installed under running samples"


@pytest.mark.soak
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("first", range(100_000, 100_000 + SOAK_SEEDS, 2_000))
def test_no_fault_order_breaks_an_invariant_ten_thousand_times(schedule: ScheduleName, first: int) -> None:
    for seed in range(first, first + 2_000):
        run(seed, schedule)


def evaluate_undisturbed(seed: int, schedule: ScheduleName) -> None:
    """Without any fault, every evaluation is by its own version."""
    outcome = world_of(seed, schedule, faults=Faults(blows=(), quiet_at=0.0)).run()
    assert outcome.end == "succeeded"
    assert outcome.oracle.faults == [], replay_command(seed, schedule)


@pytest.mark.parametrize(("seed", "schedule"), [(57, "laminar"), (57, "one_step"), (41, "partial")])
def test_undisturbed_run_reports_no_fault(seed: int, schedule: ScheduleName) -> None:
    """In each of these a relay called a version missing that the trainer was about to offer."""
    evaluate_undisturbed(seed, schedule)


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_undisturbed_runs_report_no_fault(schedule: ScheduleName) -> None:
    for seed in range(2_000, 2_050):
        evaluate_undisturbed(seed, schedule)


# Seeds that once failed, each with the bug that it found.
@pytest.mark.parametrize(
    ("seed", "schedule"),
    [
        (36, "laminar"),  # a second copy of a version overwrote bytes whose hashes were taken
        (913, "laminar"),  # a replica missed the order to evaluate, which was never repeated
        (21, "partial"),  # newer weights were installed under an evaluation's answers, again and again
        (34, "partial"),  # work for exact weights was begun while others were being installed
        (3458, "stream"),  # a sample was granted again with tokens of dead weights
        (101943, "sync"),  # a window had groups left that could be trained no more, and its weights were held forever
        (101913, "partial"),  # a checkpoint rotted at the end: the run was over before its last step was trained again
        (104887, "laminar"),  # a checkpoint that a trainer had gone back beyond could be read again by the next one
        (10375, "sync"),  # a prompt was adopted from a replica that only waited for a confirmation
    ],
)
def test_seeds_that_once_failed(seed: int, schedule: ScheduleName) -> None:
    """Without requests from outside, as at that time."""
    simulate(seed, schedule, Faults.drawn(seed))


@pytest.mark.parametrize(
    ("seed", "schedule"),
    [
        (78, "stream"),  # after a pause request at the last step, data granted no prompt of the last evaluation
        (4, "partial"),  # the same
    ],
)
def test_seeds_that_once_failed_with_requests(seed: int, schedule: ScheduleName) -> None:
    run(seed, schedule)


def test_a_seed_is_a_run() -> None:
    first, second = (world_of(36, "laminar") for _ in range(2))
    first.trace, second.trace = [], []
    first.run()
    second.run()
    assert first.trace == second.trace and len(first.trace) > 100


@pytest.mark.long
def test_the_seeds_try_everything() -> None:
    """Repacks, rollbacks, moves off a leaving replica, evaluations by newer weights: all of it is somewhere."""
    outcomes = [run(seed, "laminar") for seed in range(60)]
    actions = " ".join(fault.action for outcome in outcomes for fault in outcome.oracle.faults)
    assert sum(outcome.oracle.num_moved for outcome in outcomes) > 0
    assert any(outcome.oracle.ledger.get("rolled_back") for outcome in outcomes)
    assert {outcome.end for outcome in outcomes} == {"succeeded", "paused"}
    for action in (
        "returned to data",
        "from its log",
        "that verifies",
        "the chain",
        "restarted on another replica",
        "newer weights",
    ):
        assert action in actions, action


def test_chance_is_the_same_everywhere() -> None:
    chance = Chance(1, "test")
    assert [chance.whole(0, 99) for _ in range(5)] == [43, 49, 26, 81, 48]
    assert all(0 <= chance.uniform() < 1 for _ in range(100))
