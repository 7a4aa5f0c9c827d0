"""A grid on several processes, cut off and gone on with, finds what it finds in one go."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.sim.compare.grid import Cell, Extent, Ran
from engine.sim.compare.kept import Kept, fingerprint
from engine.sim.compare.many import Progress, run_on

TINY = Extent(
    workloads=("math",),
    models=("7B", "72B"),
    gpus=(8,),
    schedules=("sync", "paper", "laminar"),
    seeds=(1, 2),
    steps=1,
    warm_steps=1,
    most_warm_steps=1,
    groups_per_step=4,
    num_splits=1,
)


@pytest.fixture(scope="module")
def in_one_go() -> list[Ran]:
    return run_on(TINY, processes=1)


def test_the_number_of_processes_changes_nothing(in_one_go: list[Ran]) -> None:
    assert run_on(TINY, processes=2) == in_one_go


def test_each_cell_is_reported_once_as_it_ends() -> None:
    reported: list[Progress] = []
    run_on(replace(TINY, seeds=(1,)), processes=2, on_cell=reported.append)
    assert [progress.num_done for progress in reported] == list(range(1, 7))
    assert {progress.ran.cell for progress in reported} == set(TINY.cells())


def test_interrupted_grid_resumes(tmp_path: Path, in_one_go: list[Ran]) -> None:
    path = tmp_path / "cells.jsonl"
    run_on(replace(TINY, models=("7B",)), processes=1, kept=Kept(path, TINY))
    path.write_text(path.read_text()[:-20])  # killed in the middle of a line
    ran: list[Cell] = []

    def note(progress: Progress) -> None:
        if not progress.was_kept:
            ran.append(progress.ran.cell)

    assert run_on(TINY, processes=1, kept=Kept(path, TINY), on_cell=note) == in_one_go
    assert len(ran) == 4, "three of the other model, and the one that was cut off"
    assert run_on(TINY, processes=1, kept=Kept(path, TINY), on_cell=note) == in_one_go and len(ran) == 4


def test_cells_of_another_extent_are_run_again(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    one = replace(TINY, models=("7B",), schedules=("paper",))
    run_on(one, processes=1, kept=Kept(path, one))
    longer = replace(one, steps=2)
    assert fingerprint(longer) != fingerprint(one) == fingerprint(replace(one, gpus=(16,)))
    assert Kept(path, longer).load() == {} and len(Kept(path, one).load()) == 1
