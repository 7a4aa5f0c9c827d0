"""Tokens/s of designs at equal staleness: the set-up is fair, the frontier is monotone, and the command prints it."""

import json
from dataclasses import replace
from typing import Final

import pytest

from engine.commands.frontier import frontier
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.frontier.cells import REPLICAS, Cell, Place
from engine.sim.frontier.curves import DESIGNS, LEADS, Asked, Point, most_within, point, requested_runs

CELL: Final = Cell(device="H100", model="7B", context=4_096, every_s=5.0)


@pytest.mark.parametrize("context", [2_048, 16_384])
def test_rows_read_the_context_of_the_cell(context: int) -> None:
    place = Place(replace(CELL, context=context))
    assert place.lengths.prompt + place.moments.by_size / 2 == pytest.approx(context, rel=0.01)


def test_all_designs_of_a_cell_share_devices_batch_and_lengths() -> None:
    place = Place(CELL)
    setups = [place.run(CONTESTANTS[design], lead=None, seed=1) for design in DESIGNS]
    assert len({(each.groups_per_step, each.group_size, each.lengths, each.num_replicas) for each in setups}) == 1
    assert {each.train_every_s for each in setups} == {CELL.every_s} and setups[0].num_replicas == REPLICAS


def test_batch_exceeds_what_full_replicas_write_between_updates() -> None:
    place = Place(replace(CELL, every_s=100.0))
    can = REPLICAS * place.rows / place.step_s * 100.0
    assert can < place.groups_per_step * place.run(CONTESTANTS["partial"], lead=None, seed=1).group_size * (
        place.moments.mean
    )


def test_windows_have_one_point_and_the_others_one_a_lead() -> None:
    runs = [*requested_runs([CELL], ["sync_split", "partial"], [1, 2])]
    assert [each.lead for each in runs] == [None] * 2 + [lead for lead in LEADS for _ in range(2)]


def test_cell_that_does_not_fit_has_a_reason_and_no_run() -> None:
    found = point(Asked(cell=replace(CELL, context=400_000), design="laminar", lead=1.0, seed=1))
    assert "do not fit" in found.why_not and not found.tokens_per_s


def test_frontier_rises_and_starts_at_the_least_staleness() -> None:
    points = [
        Point(asked=Asked(cell=CELL, design="partial", lead=lead, seed=1), tokens_per_s=rate, staleness=staleness)
        for lead, rate, staleness in ((0.25, 10.0, 0.5), (0.5, 30.0, 2.0), (1.0, 20.0, 3.0))
    ]
    best = [most_within(points, staleness) for staleness in (0.0, 1.0, 2.0, 4.0)]
    assert [None if each is None else each.tokens_per_s for each in best] == [None, 10.0, 30.0, 30.0]


@pytest.mark.long
def test_command_prints_the_points_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--devices H100 --models 7B --contexts 4096 --every 60 --seeds 1 --processes 1 --designs sync_split"
    assert frontier(words.split()) == 0
    title, head, row = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("7B on H100, 4,096 tokens, 60 s") and head.split()[:3] == ["0", "1", "2"]
    assert row.startswith("sync_split") and int(row.split()[1].replace(",", "")) > 0


def test_command_prints_every_point_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--devices H100 --models 72B --contexts 400000 --every 60 --seeds 1 --processes 1 --designs partial --json"
    assert frontier(words.split()) == 0
    found = json.loads(capsys.readouterr().out)["points"]
    assert len(found) == len(LEADS) and all("do not fit" in each["why_not"] for each in found)
