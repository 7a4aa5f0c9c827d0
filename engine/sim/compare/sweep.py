"""The headline as a range: the grid once more with each assumed constant, and the median of lengths, at the ends of its
sweep; by how much each schedule is ahead of `sync` there, and which pairs of schedules change their order.

A pair has an order if the same schedule is ahead with every seed; the order is overturned if the other is ahead with
every seed. A pair that the seeds leave open is neither kept nor overturned.

Invariant: only assumed constants and the median are swept; fitted and given constants keep their values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from typing import Any

from engine.sim.compare.grid import Cell, Extent, Ran, tokens_per_s
from engine.sim.compare.kept import Kept
from engine.sim.compare.many import Progress, run_on
from engine.sim.costs.calibration import CONSTANTS
from engine.sim.costs.constants import Constant
from engine.sim.costs.environment import ANSWER_TOKENS, CALL_S, SLOW_CALLS
from engine.sim.costs.lengths import MEDIAN

Pair = tuple[str, str]
Place = tuple[str, str, int]
"""Workload, model, devices."""
OF_TOOLS = (CALL_S, SLOW_CALLS, ANSWER_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    constant: str
    factor: float
    over_sync: dict[str, tuple[float, float]]
    """For each schedule, the least and the most over the cells."""
    overturned: list[tuple[Place, Pair]]
    """Place and pair: the first schedule was ahead, and is behind."""
    unfit: int
    """Cells that do not fit."""


def sweep(
    extent: Extent,
    *,
    processes: int,
    kept: Callable[[Extent], Kept | None] = lambda extent: None,
    on_cell: Callable[[Progress], None] = lambda progress: None,
    constants: Sequence[Constant] | None = None,
) -> dict[str, Any]:
    def run(varied: Extent) -> list[Ran]:
        return run_on(varied, processes=processes, kept=kept(varied), on_cell=on_cell)

    stands = run(extent)
    ahead = _ahead(stands)
    rows = [_swept("as they stand", 1.0, stands, ahead)]
    for constant, factor in ends(extent, constants):
        varied = replace(extent, book=extent.book.with_factor(constant, factor))
        rows.append(_swept(constant.name, factor, run(varied), ahead))
    ranges = {
        name: (min(row.over_sync[name][0] for row in rows), max(row.over_sync[name][1] for row in rows))
        for name in rows[0].over_sync
        if all(name in row.over_sync for row in rows)
    }
    return {
        "rows": [asdict(row) for row in rows],
        "over_sync": ranges,
        "order_survives": not any(row.overturned for row in rows),
    }


def ends(extent: Extent, constants: Sequence[Constant] | None = None) -> Iterator[tuple[Constant, float]]:
    """The ends of each sweep; constants of tools only for workloads with tools."""
    for constant in CONSTANTS if constants is None else constants:
        is_swept = constant.origin == "assumed" or constant is MEDIAN
        if is_swept and (constant not in OF_TOOLS or "tools" in extent.workloads):
            yield from ((constant, factor) for factor in constant.sweep)


def _swept(name: str, factor: float, grid: Sequence[Ran], ahead: set[tuple[Place, Pair]]) -> Swept:
    behind = {(place, (one, other)) for place, (other, one) in _ahead(grid)}
    by_cell = {ran.cell: ran for ran in grid if ran.outcomes}
    over: dict[str, list[float]] = {}
    for cell, ran in by_cell.items():
        sync = by_cell.get(replace(cell, schedule="sync"))
        if sync is not None:
            over.setdefault(cell.schedule, []).append(tokens_per_s(ran) / tokens_per_s(sync))
    return Swept(
        constant=name,
        factor=factor,
        over_sync={schedule: (min(found), max(found)) for schedule, found in over.items()},
        overturned=sorted(ahead & behind),
        unfit=sum(not ran.outcomes for ran in grid),
    )


def _ahead(grid: Sequence[Ran]) -> set[tuple[Place, Pair]]:
    places: dict[Place, list[Ran]] = {}
    for ran in grid:
        if ran.outcomes:
            places.setdefault(_place(ran.cell), []).append(ran)
    return {
        (place, (one.cell.schedule, other.cell.schedule))
        for place, rans in places.items()
        for one, other in permutations(rans, 2)
        if all(
            mine.tokens_per_s > theirs.tokens_per_s for mine, theirs in zip(one.outcomes, other.outcomes, strict=True)
        )
    }


def _place(cell: Cell) -> Place:
    return cell.workload, cell.model, cell.gpus
