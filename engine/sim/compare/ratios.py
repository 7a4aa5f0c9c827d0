"""By how much one schedule is ahead of another, cell by cell.

A ratio compares runs of the same seed and prompts; its interval is over seeds (Student's t, 95 %). A schedule is ahead
of another if the whole interval is above 1, behind if it is below 1; otherwise the seeds leave the order open.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev
from typing import Final, Literal

from engine.sim.compare.grid import Cell, Ran

Interval = tuple[float, float]
Standing = Literal["ahead", "behind", "open"]

# Student's t for 95 %, two-sided, by degrees of freedom.
_STUDENT: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    workload: str
    model: str
    gpus: int
    schedule: str
    over: str
    mean: float
    ci95: Interval | None
    """None: there is only one seed."""

    @property
    def standing(self) -> Standing:
        if self.ci95 is None or self.ci95[0] <= 1 <= self.ci95[1]:
            return "open"
        return "ahead" if self.ci95[0] > 1 else "behind"


def interval(values: Sequence[float]) -> Interval | None:
    """The interval of the mean; None: a single value has no spread."""
    if len(values) < 2:
        return None
    half = _STUDENT.get(len(values) - 1, 1.96) * stdev(values) / sqrt(len(values))
    return (mean(values) - half, mean(values) + half)


def by_seed(ran: Ran, other: Ran | None) -> list[float]:
    """The ratios by seed; empty if one of the schedules does not fit."""
    pairs = zip(ran.outcomes, () if other is None else other.outcomes, strict=False)
    return [mine.tokens_per_s / theirs.tokens_per_s for mine, theirs in pairs]


def ratios(grid: Sequence[Ran], schedules: Iterable[str]) -> list[Ratio]:
    """The ratios of these schedules over every other one, in cells where both fit."""
    by_cell = {ran.cell: ran for ran in grid}
    wanted = set(schedules)
    every_ratio = []
    for ran in grid:
        if ran.cell.schedule not in wanted:
            continue
        for other in dict.fromkeys(each.cell.schedule for each in grid):
            of_seeds = by_seed(ran, by_cell.get(cell_of(ran.cell, other)))
            if other != ran.cell.schedule and of_seeds:
                every_ratio.append(_ratio(ran.cell, other, of_seeds))
    return every_ratio


def standings(every_ratio: Iterable[Ratio]) -> dict[str, dict[str, dict[Standing, list[str]]]]:
    """For each pair of schedules: the cells in which the first is ahead, is behind, and those left open."""
    places: dict[str, dict[str, dict[Standing, list[str]]]] = {}
    for ratio in every_ratio:
        over = places.setdefault(ratio.schedule, {}).setdefault(ratio.over, {"ahead": [], "open": [], "behind": []})
        over[ratio.standing].append(f"{ratio.workload} {ratio.model} {ratio.gpus}")
    return places


def cell_of(cell: Cell, schedule: str) -> Cell:
    return replace(cell, schedule=schedule)


def _ratio(cell: Cell, other: str, of_seeds: list[float]) -> Ratio:
    return Ratio(
        workload=cell.workload,
        model=cell.model,
        gpus=cell.gpus,
        schedule=cell.schedule,
        over=other,
        mean=mean(of_seeds),
        ci95=interval(of_seeds),
    )
