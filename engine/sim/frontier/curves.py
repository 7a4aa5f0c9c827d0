"""A design's points in a cell, one for each lead, and its most tokens/s within a staleness.

Invariants:
- schedules with windows have their own lead only, and so one point;
- a design has no figure within a staleness that all its points exceed.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from engine.sim.compare.contestants import CONTESTANTS, OF_THE_GRID
from engine.sim.fleet.fleet import Fleet
from engine.sim.frontier.cells import Cell, Place

LEADS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Relative to what full replicas hold: with less they have empty places, with more fresh samples wait and age."""
DESIGNS: Final = tuple(name for name in OF_THE_GRID if not CONTESTANTS[name].is_colocated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    cell: Cell
    design: str
    lead: float | None
    """Relative to what full replicas hold; None: the schedule's default."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    asked: Asked
    why_not: str = ""
    tokens_per_s: float = 0.0
    staleness: float = 0.0
    """Of a trajectory by its stalest token, the mean."""
    staleness_of_tokens: float = 0.0
    kv_used: float = 0.0
    prefill_tokens: float = 0.0
    """A step."""


def requested_runs(cells: Sequence[Cell], designs: Sequence[str], seeds: Sequence[int]) -> Iterator[Asked]:
    for cell in cells:
        for design in designs:
            leads: Sequence[float | None] = LEADS
            if CONTESTANTS[design].schedule.window_steps:
                leads = (None,)
            for lead in leads:
                for seed in seeds:
                    yield Asked(cell=cell, design=design, lead=lead, seed=seed)


def point(each: Asked) -> Point:
    place = Place(each.cell)
    if place.why_not:
        return Point(asked=each, why_not=place.why_not)
    lead = None if each.lead is None else each.lead * place.in_flight
    setup = place.run(CONTESTANTS[each.design], lead=lead, seed=each.seed)
    if setup.why_not:
        return Point(asked=each, why_not=setup.why_not)
    outcome = Fleet(setup).run()
    return Point(
        asked=each,
        tokens_per_s=outcome.tokens_per_s,
        staleness=outcome.staleness_mean,
        staleness_of_tokens=outcome.staleness_of_tokens,
        kv_used=outcome.kv_used,
        prefill_tokens=outcome.prefill_tokens,
    )


def points(wanted: Sequence[Asked], *, processes: int) -> Iterator[Point]:
    """In their order, as they come."""
    if processes == 1:
        yield from map(point, wanted)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(point, wanted)


def most_within(points: Sequence[Point], staleness: float) -> Point | None:
    """`found`: of one cell, design and seed."""
    kept = [each for each in points if not each.why_not and each.staleness <= staleness]
    return max(kept, key=lambda each: each.tokens_per_s, default=None)
