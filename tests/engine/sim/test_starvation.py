"""A process that waits for a core is not replaced, and the run continues and succeeds."""

from dataclasses import replace
from typing import Final

import pytest

from engine.pipeline.messages.to_driver import FaultReported
from engine.sim.chance import Chance
from engine.sim.cluster import PATIENCE
from engine.sim.faults import LAST_FAULT_S, Blow, Faults, PartName
from engine.sim.scenario import faults_of, world_of
from engine.sim.world import Outcome

STARVED: Final[tuple[PartName, ...]] = ("rollout", "relay", "data", "trainer", "environment")
LASTS_S: Final = 45.0
"""Nine times as long as a part may be silent there."""


def starve(part: PartName, *, at: float, which: int = 0) -> Blow:
    return Blow(at=at, part=part, which=which, kind="starve", lasts_s=LASTS_S)


def lost_parts(outcome: Outcome) -> list[FaultReported]:
    return [fault for fault in outcome.oracle.faults if fault.component.split("/")[0] in STARVED]


@pytest.mark.parametrize("part", STARVED)
def test_starved_part_is_not_replaced(part: PartName) -> None:
    outcome = world_of(3, "laminar", faults=Faults(blows=(starve(part, at=1.0),), quiet_at=60.0)).run()
    assert outcome.end == "succeeded" and outcome.virtual_s > 2 * PATIENCE.silent_s
    assert lost_parts(outcome) == []


def test_host_that_starves_every_part_loses_none() -> None:
    blows = tuple(starve(part, at=1.0 + which / 10, which=which) for part in STARVED for which in range(3))
    outcome = world_of(5, "laminar", faults=Faults(blows=blows, quiet_at=60.0)).run()
    assert outcome.end == "succeeded" and lost_parts(outcome) == []


def evaluate_starved(seed: int) -> None:
    """Starves parts and nothing else: every evaluation is by its own version."""
    chance = Chance(seed, "starved")
    blows = tuple(
        starve(part, at=chance.uniform(0.5, LAST_FAULT_S), which=chance.whole(0, 7))
        for part in STARVED
        if chance.happens(0.4)
    )
    outcome = world_of(seed, "laminar", faults=Faults(blows=blows, quiet_at=60.0)).run()
    lost = [fault for fault in outcome.oracle.faults if "was lost" in fault.message]
    assert not lost, f"seed {seed}: {lost}"


@pytest.mark.parametrize("seed", [27, 57, 66])
def test_starved_host_costs_no_evaluation_its_version(seed: int) -> None:
    """Each of these lost one while a relay called versions missing that had not arrived yet."""
    evaluate_starved(seed)


@pytest.mark.long
def test_many_starved_hosts_cost_no_evaluation_its_version() -> None:
    for seed in range(1_000, 1_200):
        evaluate_starved(seed)


def check(seed: int) -> None:
    """Among all other faults, the oracle objects to the loss of a part that is starved."""
    chance = Chance(seed, "starved")
    blows = [
        starve(part, at=chance.uniform(0.5, LAST_FAULT_S), which=chance.whole(0, 7))
        for part in STARVED
        if chance.happens(0.4)
    ]
    faults = faults_of(seed)
    try:
        world_of(seed, "laminar", faults=replace(faults, blows=(*faults.blows, *blows))).run()
    except Exception as error:  # noqa: BLE001 - any failure must name its seed
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")


def test_starvation_with_other_faults() -> None:
    check(0)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1_000, 1_300, 100))
def test_starvation_with_many_other_faults(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
