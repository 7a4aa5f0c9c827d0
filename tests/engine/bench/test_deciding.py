"""The deciding experiment on a tiny model, with a clock that advances by a millisecond at every reading."""

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, Final

import pytest
import torch

from engine.fit.known_models import KNOWN_CONFIGS
from engine.pipeline.effects import TrainOn
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import Lengths
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.setup import Setup
from engine.sim.recorded.facts import Observations
from tests.bench.engine.deciding.counted import SCHEDULES
from tests.bench.engine.deciding.engine import Counted, together
from tests.bench.engine.deciding.engine_body import EngineBody
from tests.bench.engine.deciding.machine import Machine, machine_of
from tests.bench.engine.deciding.own_constants import OwnConstants, measure_own

NARROW: Final = {
    **KNOWN_CONFIGS["Qwen3-0.6B"],
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
}
LENGTHS: Final = Lengths(median=6, longest=40, prompt=20)
MIXING: Final = ("partial", "inflight", "laminar_cap")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    looks, threads = count(), torch.get_num_threads()
    torch.set_num_threads(1)
    with machine_of(NARROW, layers=1, longest=60, max_batch=4, clock=lambda: next(looks) / 1_000) as machine:
        yield machine
    torch.set_num_threads(threads)


class Noting(Fleet):
    def __init__(self, setup: Setup, machine: Machine) -> None:
        self.batches: list[TrainOn] = []
        super().__init__(setup, make_body=partial(EngineBody, machine=machine), on_batch=self.batches.append)

    @property
    def counted(self) -> Counted:
        return together([engine.counted for replica in self.replicas for engine in replica.body.engines])


def ran(schedule: str, machine: Machine, **changes: Any) -> Noting:
    contestant = CONTESTANTS[schedule]
    usual = {
        "train_every_s": 0.02,
        "steps": 4,
        "warm_steps": 1,
        "groups_per_step": 3,
        "group_size": 4,
        "mini_batch": 12,
        "max_batch": 4,
    }
    setup = Setup(
        device=DEVICES["CPU"],
        model=machine.model,
        schedule=contestant.schedule,
        slots=contestant.slots,
        train_devices=1,
        rollout_devices=2,
        tp=1,
        lengths=LENGTHS,
        **{**usual, **changes},
    )
    fleet = Noting(setup, machine)
    fleet.run()
    return fleet


@pytest.mark.long_except("one_step", "bounded", "paper")
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_real_engines_write_every_answer_once_at_drawn_length(schedule: str, machine: Machine) -> None:
    fleet = ran(schedule, machine)
    trained = [each for batch in fleet.batches for group in batch.groups for each in group.trajectories]
    assert len({each.key for each in trained}) == len(trained) == len(fleet.batches) * 12
    for each in trained:
        work = fleet.setup.work(each.key)
        assert each.num_tokens == work.prompt + work.num_written
        assert sum(run.num_tokens for run in each.runs) == work.num_written
        assert len(each.runs) == 1 or schedule in MIXING
    assert fleet.counted.num_decoded >= sum(fleet.setup.work(each.key).num_written for each in trained)
    assert fleet.counted.installs >= 2


def test_only_schedules_that_drop_caches_prefill_again(machine: Machine) -> None:
    read = {}
    for schedule in ("partial", "inflight"):
        counted = ran(schedule, machine).counted
        read[schedule] = counted.num_prefilled / counted.num_decoded
    assert read["partial"] > read["inflight"]


def test_price_is_the_sum_of_counts_times_constants() -> None:
    own = OwnConstants(
        rows=(1, 2, 4),
        step_s=(1.0, 1.5, 4.5),
        short_context=10,
        context_token_s=0.01,
        pass_s=0.5,
        prefill_token_s=0.1,
        install_s=7.0,
        move_token_s=0.2,
        observations=Observations(),
    )
    counted = Counted(steps=[(1, 10), (3, 230)], prefilled=[5, 15], installs=2, moved=10)
    assert own.terms(counted) == pytest.approx(
        {"steps": 1.0 + 3.0, "context": 2.0, "prefill": 1.0 + 2.0, "installs": 14.0, "moves": 2.0}
    )


def test_separate_measurements_cover_terms_and_clear_the_engine(machine: Machine) -> None:
    own = measure_own(machine, longest=40)
    assert own.rows == (1, 2, 4) and all(each > 0 for each in own.step_s)
    assert own.install_s > 0
    assert {each.num_prefilled > 0 for each in own.observations.decoded} == {True, False}
