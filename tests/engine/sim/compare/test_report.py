"""The report of a grid: ratios of paired seeds, leads by cell, published figures next to ours, and its constants."""

from dataclasses import replace

import pytest

from engine.sim.compare.checks import _kv_without_repack
from engine.sim.compare.grid import Cell, Extent, Ran, run_cell
from engine.sim.compare.published import MOST_SPEED_UP, Published, from_grid, from_targets
from engine.sim.compare.ratios import Ratio, ratios, standings
from engine.sim.compare.report import report
from engine.sim.costs.calibration import CONSTANTS, TARGETS
from engine.sim.costs.frozen import FREEZES, fingerprint

TINY = Extent(
    workloads=("math",),
    models=("7B",),
    gpus=(8,),
    schedules=("sync", "paper", "laminar"),
    seeds=(1, 2),
    steps=2,
    warm_steps=1,
    most_warm_steps=1,
    groups_per_step=4,
    num_splits=1,
)


@pytest.fixture(scope="module")
def sync() -> Ran:
    return run_cell(Cell(workload="math", model="7B", gpus=8, schedule="sync"), TINY)


def _with(ran: Ran, schedule: str, *rates: float, generation: float = 0.5) -> Ran:
    outcome = replace(ran.outcomes[0], generation_share=generation)
    outcomes = tuple(replace(outcome, tokens_per_s=rate) for rate in rates)
    return replace(ran, cell=replace(ran.cell, schedule=schedule), outcomes=outcomes)


def test_a_ratio_is_of_the_same_seed(sync: Ran) -> None:
    grid = [_with(sync, "sync", 1.0, 10.0), _with(sync, "paper", 2.0, 20.0)]
    (found,) = ratios(grid, ["paper"])
    assert (found.schedule, found.over, found.mean) == ("paper", "sync", 2.0)
    assert found.ci95 == (2.0, 2.0), "both seeds have the same ratio, though their rates differ ten times"


@pytest.mark.parametrize(
    ("ci95", "standing"), [((1.1, 1.3), "ahead"), ((0.9, 1.3), "open"), ((0.7, 0.9), "behind"), (None, "open")]
)
def test_schedule_is_ahead_if_its_whole_interval_exceeds_one(ci95: tuple[float, float] | None, standing: str) -> None:
    ratio = Ratio(workload="math", model="7B", gpus=8, schedule="laminar", over="paper", mean=1.2, ci95=ci95)
    assert ratio.standing == standing
    places = standings([ratio])["laminar"]["paper"]
    assert {name: cells for name, cells in places.items() if cells} == {standing: ["math 7B 8"]}


def test_a_cell_that_does_not_fit_has_no_ratio(sync: Ran) -> None:
    unfit = Ran(cell=replace(sync.cell, schedule="paper"), why_not="too little memory")
    assert ratios([sync, unfit], ["paper"]) == []
    assert {each.what for each in from_grid([sync, unfit])} == {"generation of a step of sync, math"}


def test_published_speed_ups_are_compared_with_paper(sync: Ran) -> None:
    grid = [
        _with(sync, "sync", 1.0, generation=0.4),
        _with(sync, "paper", 2.0),
        _with(sync, "laminar", 9.0, generation=0.9),
    ]
    speed_up, share = from_grid(grid)
    assert speed_up.published == MOST_SPEED_UP and speed_up.ours == (2.0, 2.0)
    assert speed_up.ratio == pytest.approx((2 / MOST_SPEED_UP, 2 / MOST_SPEED_UP))
    assert share.ours == (0.4, 0.4)


def test_fitted_target_is_no_check() -> None:
    kinds = {each.what: each.kind for each in from_targets()}
    assert kinds == {target.what: "checked" if target.fixes is None else "fitted" for target in TARGETS}


def test_kv_use_without_repack_is_of_the_papers_schedule_alone(sync: Ran) -> None:
    assert sync.setup is not None
    at = replace(sync.cell, gpus=256)
    grid = [replace(sync, cell=replace(at, schedule=schedule)) for schedule in ("sync", "paper")]
    (setup,) = _kv_without_repack(grid).setups
    assert not setup.schedule.repack and setup == replace(sync.setup, schedule=setup.schedule)


def test_the_constants_are_as_they_were_frozen() -> None:
    assert fingerprint(CONSTANTS) == FREEZES[-1].fingerprint, "a change of a constant needs a line in FREEZES"
    changed = (replace(CONSTANTS[0], value=CONSTANTS[0].value * 1.01), *CONSTANTS[1:])
    assert fingerprint(changed) != fingerprint(CONSTANTS)
    assert all(freeze.commit and freeze.reason for freeze in FREEZES)


def test_a_report_carries_the_commit_of_its_constants(sync: Ran) -> None:
    checked = Published(what="a figure", source="somewhere", published=2.0, ours=(1.0, 3.0), kind="checked")
    found = report([sync], TINY, checked=[checked])
    assert found["program"]["constants"]["commit"] == FREEZES[0].commit
    assert found["program"]["events"] == sum(outcome.num_events for outcome in sync.outcomes)
    (told,) = [each for each in found["published"] if each["what"] == "a figure"]
    assert told["ratio"] == (0.5, 1.5)
