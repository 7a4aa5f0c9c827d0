"""Every kind of process stopped (SIGSTOP) for shorter and longer than anybody waits for it, and gone on.

Whoever is stopped for shorter is missed by nobody. Who judges others (the driver's process) blames nobody, however
long it was stopped. Any other part is replaced if it was longer, and what it does on waking changes nothing: the oracle
looks on.
"""

from collections.abc import Sequence
from typing import Final, get_args

import pytest

from engine.sim.cluster import PATIENCE
from engine.sim.faults import Blow, Faults, PartName
from engine.sim.scenario import SCHEDULES, world_of

KINDS: Final = get_args(PartName)
JUDGES: Final = ("driver", "manager")
SHORTER_S: Final = 0.5 * PATIENCE.silent_s
LONGER_S: Final = (1.5 * PATIENCE.silent_s, 12.0 * PATIENCE.silent_s, 90.0 * PATIENCE.silent_s)
SEEDS: Final = 1
SOAK_SEEDS: Final = 36  # of 4 lengths, 7 kinds: a thousand stops


def stopped(kind: PartName, lasts_s: float, seed: int) -> list[str]:
    """The parts that were found at fault."""
    blow = Blow(at=1.0 + 0.17 * (seed % 40), part=kind, which=seed, kind="freeze", lasts_s=lasts_s)
    world = world_of(seed, SCHEDULES[seed % len(SCHEDULES)], faults=Faults(blows=(blow,)))
    faults = [fault.component for fault in world.run().oracle.faults]
    return [part for part in faults if not part.startswith("evaluation/")]  # a grader's, by chance


def of_all(kind: PartName, seeds: range, longer_s: Sequence[float]) -> None:
    for seed in seeds:
        assert stopped(kind, SHORTER_S, seed) == [], seed
        for lasts_s in longer_s:
            faults = stopped(kind, lasts_s, seed)
            assert not faults or kind not in JUDGES, (seed, lasts_s, faults)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_stopped_loses_nothing_and_blames_nobody(kind: PartName) -> None:
    of_all(kind, range(SEEDS), LONGER_S[:1])


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_stopped_loses_nothing_and_blames_nobody_a_thousand_times(kind: PartName) -> None:
    of_all(kind, range(1_000, 1_000 + SOAK_SEEDS), LONGER_S)
