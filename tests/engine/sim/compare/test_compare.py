"""The comparison: its rows, its intervals, its splits, and the file of a set-up of one's own."""

import json
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.sim.compare.contestants import CONTESTANTS, OF_THE_GRID
from engine.sim.compare.grid import Cell, Extent, run_cell
from engine.sim.compare.many import run_on
from engine.sim.compare.ratios import interval
from engine.sim.compare.report import report
from engine.sim.compare.splits import moments, splits, step_s
from engine.sim.costs.lengths import Lengths

TINY = Extent(
    workloads=("math",),
    models=("7B",),
    gpus=(8, 16),
    schedules=("sync", "partial", "paper", "laminar"),
    seeds=(1, 2),
    steps=2,
    warm_steps=1,
    most_warm_steps=1,
    groups_per_step=8,
    num_splits=1,
)
ROW = {
    "workload", "model", "gpus", "schedule", "fits", "why_not", "seeds", "tokens_per_s", "tokens_per_s_ci95",
    "speedup_over_sync", "staleness_mean", "staleness_max", "staleness_of_tokens", "kv_used", "generation_share",
    "rollout_wait_share", "actor_stall_s", "split",
}  # fmt: skip


@pytest.mark.long
def test_report_has_a_row_per_cell_and_the_lead_of_each_schedule() -> None:
    found = report(run_on(TINY, processes=1), TINY)
    assert len(found["rows"]) == 8
    assert all(set(row) == ROW and row["fits"] for row in found["rows"])
    assert all(row["speedup_over_sync"] == 1 for row in found["rows"] if row["schedule"] == "sync")
    assert set(found["summary"]) == {"paper", "laminar", "best"}
    for its in found["summary"].values():
        assert set(its) == {"over", "scaling_efficiency", "design"}
        assert all(over["mean"] <= over["max"] for over in its["over"].values())
        assert all(low <= over["mean"] <= high for over in its["over"].values() for low, high in [over["ci95"]])
    json.dumps(found)


def test_cell_that_does_not_fit_is_a_row_with_a_reason() -> None:
    ran = run_cell(Cell(workload="math", model="72B", gpus=16, schedule="laminar"), TINY)
    row = report([ran], TINY)["rows"][0]
    assert not row["fits"] and row["why_not"] and row["tokens_per_s"] is None


def test_an_interval_of_three_seeds_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found is not None and found == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert interval([1.0]) is None


def test_a_design_for_lora_alone_is_not_in_the_grid() -> None:
    assert {name for name in CONTESTANTS if name not in OF_THE_GRID} == {"adapter"}
    assert {cell.schedule for cell in Extent().cells()} == set(OF_THE_GRID)


@pytest.mark.parametrize("schedule", OF_THE_GRID)
def test_splits_are_whole_devices_and_the_best_comes_first(schedule: str) -> None:
    setup = Cell(workload="tools", model="32B", gpus=128, schedule=schedule).setup(Extent())
    found = splits(setup, num=3)
    assert all(each.num_devices == 128 and each.rollout_devices % each.tp == 0 for each in found)
    assert [step_s(each) for each in found] == sorted(step_s(each) for each in found)


def test_moments_are_those_of_the_lengths_that_are_drawn() -> None:
    unbounded = moments(Lengths(median=1_500, longest=10**9))
    assert unbounded.mean == pytest.approx(2_449, rel=0.01)
    assert moments(Lengths()).mean < unbounded.mean and moments(Lengths()).by_size < unbounded.by_size


def test_setup_from_a_file_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"groups_per_step": 4, "steps": 1, "warm_steps": 1, "longest": 2_000}
    asked = {"device": "H100", "model": "7B", "schedule": "laminar", "training": 4, "rollout": 4, **small}
    for change, code, says in (
        ({}, 0, '"fits": true'),
        ({"training": 1}, 0, "training takes"),
        ({"device": "Z80"}, 2, "device: must be one of"),
        ({"schedule": "sync"}, 2, "rollout: sync generates on the training devices"),
        ({"colour": 1}, 2, "colour"),
        ({"schedule": "laminar_delta"}, 0, '"fits": true'),
        ({"schedule": "adapter", "lora_rank": 32}, 0, '"fits": true'),
        ({"schedule": "adapter"}, 2, "adapter holds adapters side by side; must be at least 1, got 0"),
        ({"schedule": "laminar_delta", "lora_rank": 32}, 2, "must be 0, got 32"),
    ):
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({**asked, **change}))
        monkeypatch.setattr("sys.argv", ["engine", "simulate", str(path)])
        assert main() == code
        printed = capsys.readouterr()
        assert says in printed.out + printed.err
