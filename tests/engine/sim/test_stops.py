"""Every kind of process is stopped (SIGSTOP) for shorter and longer than its timeout, and resumed.

A shorter stop has no consequence. The driver's process, which judges the others, blames no part after a stop of any
length. Any other part is replaced after a longer stop, and its actions on waking change nothing: the oracle checks.
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
    """The parts that faults were reported of."""
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
def test_stopped_processes_lose_nothing_and_blame_no_part(kind: PartName) -> None:
    of_all(kind, range(SEEDS), LONGER_S[:1])


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_processes_lose_nothing_a_thousand_times(kind: PartName) -> None:
    of_all(kind, range(1_000, 1_000 + SOAK_SEEDS), LONGER_S)
