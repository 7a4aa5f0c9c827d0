"""The split that the closed form chooses, compared with all splits simulated."""

from dataclasses import replace

import pytest

from engine.sim.compare.grid import QUICK, Cell
from engine.sim.compare.splits import _candidates, splits
from engine.sim.fleet.fleet import Fleet

EXTENT = replace(QUICK, groups_per_step=16, steps=3, warm_steps=2)
NEARLY = 0.95


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["sync_split", "one_step", "laminar", "paper"])
def test_one_of_the_two_splits_tried_is_nearly_the_best(schedule: str) -> None:
    setup = Cell(workload="math", model="7B", gpus=8, schedule=schedule).setup(EXTENT)
    made = {
        each.train_devices: Fleet(each.with_seed(1)).run().tokens_per_s
        for each in _candidates(setup)
        if not each.why_not
    }
    assert len(made) >= 4
    tried = [each.train_devices for each in splits(setup, num=QUICK.num_splits)]
    assert max(made[each] for each in tried) >= NEARLY * max(made.values()), made
