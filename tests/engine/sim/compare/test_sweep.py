"""A sweep varies only assumptions, and calls an order overturned only if every seed agrees."""

from dataclasses import replace

import pytest

from engine.sim.compare.grid import Cell, Extent, Ran, run_cell
from engine.sim.compare.sweep import _ahead, _swept, ends, sweep
from engine.sim.costs.calibration import CONSTANTS
from engine.sim.costs.environment import CALL_S
from engine.sim.costs.grading import GRADING_S
from engine.sim.costs.lengths import MEDIAN

TINY = Extent(
    workloads=("math",),
    models=("7B",),
    gpus=(8,),
    schedules=("sync", "partial"),
    seeds=(1, 2),
    steps=1,
    warm_steps=1,
    most_warm_steps=1,
    groups_per_step=4,
    num_splits=1,
)


def test_only_assumed_constants_and_the_median_are_swept() -> None:
    swept = {constant.name for constant, _ in ends(replace(TINY, workloads=("math", "tools")))}
    assert swept == {constant.name for constant in CONSTANTS if constant.origin == "assumed"} | {MEDIAN.name}
    assert CALL_S.name not in {constant.name for constant, _ in ends(TINY)}


@pytest.mark.long
def test_a_sweep_has_a_row_for_each_end_and_a_range_over_all() -> None:
    found = sweep(TINY, processes=1, constants=(MEDIAN, GRADING_S))
    assert [(row["constant"], row["factor"]) for row in found["rows"]] == [
        ("as they stand", 1.0),
        *((constant.name, factor) for constant in (MEDIAN, GRADING_S) for factor in constant.sweep),
    ]
    for name, (least, most) in found["over_sync"].items():
        assert least == min(row["over_sync"][name][0] for row in found["rows"])
        assert most == max(row["over_sync"][name][1] for row in found["rows"])
    assert found["over_sync"]["sync"] == (1, 1)


def test_order_is_overturned_only_if_every_seed_agrees() -> None:
    ran = run_cell(Cell(workload="math", model="7B", gpus=8, schedule="sync"), TINY)

    def with_rates(schedule: str, *rates: float) -> Ran:
        outcomes = tuple(replace(ran.outcomes[0], tokens_per_s=rate) for rate in rates)
        return replace(ran, cell=replace(ran.cell, schedule=schedule), outcomes=outcomes)

    stood = _ahead([with_rates("sync", 1, 2), with_rates("partial", 3, 4)])
    assert stood == {(("math", "7B", 8), ("partial", "sync"))}
    for rates, overturned in (((2, 5), False), ((3, 5), True), ((1, 2), False)):
        varied = [with_rates("sync", *rates), with_rates("partial", 2.5, 3)]
        assert bool(_swept("any", 2.0, varied, stood).overturned) == overturned
