"""A fleet conserves tokens and time under every schedule; which schedule is faster is a result, not a test."""

from dataclasses import replace

import pytest

from engine.pipeline.records import SampleKey
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.constants import AS_THEY_STAND
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.memory import RESERVE
from engine.sim.costs.models import MODELS
from engine.sim.costs.training import HALF_TOKENS, MFU
from engine.sim.fleet.fleet import Fleet
from tests.engine.sim.fleet.fleets import NotingFleet, outcome_of, setup_of

# A faster part can change the order of events, and so a few groups of a step: compare the time of steps, not the tokens
# of particular groups.
ORDER_COSTS = 0.02


@pytest.mark.long_except(
    "sync-math", "sync_split-math", "stream-math", "bounded-math", "partial-math", "laminar_delta-math"
)
@pytest.mark.parametrize("workload", ["math", "tools"])
@pytest.mark.parametrize("schedule", CONTESTANTS)
def test_every_trained_token_was_drawn_and_is_trained_once(schedule: str, workload: str) -> None:
    fleet = NotingFleet(setup_of(schedule, workload=workload))
    fleet.run()
    setup, seen = fleet.setup, set[SampleKey]()
    for batch in fleet.batches:
        for group in batch.groups:
            for trajectory in group.trajectories:
                calls = setup.tools.calls(setup.seed, trajectory.key) if setup.tools is not None else ()
                response = max(len(calls) + 1, setup.lengths.response(setup.seed, trajectory.key))
                drawn = setup.lengths.prompt + response + sum(call.tokens for call in calls)
                assert trajectory.num_tokens == drawn
                assert sum(run.num_tokens for run in trajectory.runs) == response
                assert trajectory.key not in seen
                seen.add(trajectory.key)


@pytest.mark.long_except("sync_split", "bounded", "partial", "inflight", "laminar", "laminar_delta_cap")
@pytest.mark.parametrize("schedule", CONTESTANTS)
def test_replicas_stay_within_memory_bandwidth_and_time(schedule: str) -> None:
    fleet = NotingFleet(setup_of(schedule))
    fleet.run()
    for replica in fleet.replicas:
        decoding, cost = replica.body.decoding, fleet.setup.decode
        fewest_steps = decoding.num_written / fleet.setup.max_batch
        assert decoding.busy_s >= fewest_steps * (cost.weights_s + cost.overhead_s)
        assert decoding.busy_s <= fleet.kernel.now + 1e-6


@pytest.mark.long_except("laminar_delta_cap", "adapter")
@pytest.mark.parametrize("schedule", CONTESTANTS)
def test_the_same_set_up_is_the_same_run(schedule: str) -> None:
    assert outcome_of(schedule, workload="tools") == outcome_of(schedule, workload="tools")


def test_with_no_variance_and_free_training_no_schedule_gains() -> None:
    """One step's samples fill every place once, so that all schedules have equally full batches."""
    free = AS_THEY_STAND.with_factor(MFU, 1e6).with_factor(HALF_TOKENS, 1e-9)
    even = {"lengths": Lengths(median=2_000, sigma=0.0, prompt=50), "book": free, "max_batch": 12}
    rates = {name: outcome_of(name, **even).tokens_per_s for name in CONTESTANTS if name != "sync"}
    assert max(rates.values()) < 1.05 * rates["sync_split"], rates


@pytest.mark.long_except("sync", "sync_split", "stream", "bounded", "laminar_delta_cap", "adapter")
@pytest.mark.parametrize("schedule", CONTESTANTS)
def test_more_bandwidth_is_never_slower(schedule: str) -> None:
    slow, fast = (outcome_of(schedule, device=DEVICES[name]).step_s for name in ("H100", "H200"))
    assert fast <= slow * (1 + ORDER_COSTS)


@pytest.mark.parametrize("schedule", ["sync", "partial", "laminar", "laminar_delta", "paper"])
def test_more_memory_is_never_slower(schedule: str) -> None:
    """Compares memory for a few answers with ample memory."""
    tight = AS_THEY_STAND.with_factor(RESERVE, {"laminar": 4.91, "laminar_delta": 6.08}.get(schedule, 6.43))
    assert setup_of(schedule, book=tight).usual_kv_tokens < 10_000
    slow, fast = (outcome_of(schedule, book=book).step_s for book in (tight, AS_THEY_STAND))
    assert fast <= slow * (1 + ORDER_COSTS)


@pytest.mark.parametrize("schedule", [name for name in CONTESTANTS if not CONTESTANTS[name].is_colocated])
def test_trajectory_has_one_version_unless_the_schedule_mixes(schedule: str) -> None:
    setup = setup_of(schedule)
    if setup.schedule.age_cap is not None:  # otherwise nothing would grow old enough in so short a run
        setup = replace(setup, schedule=replace(setup.schedule, age_cap=1))
    fleet = NotingFleet(setup)
    fleet.run()
    trajectories = [each for batch in fleet.batches for group in batch.groups for each in group.trajectories]
    mixes = any(len(each.writers) > 1 for each in trajectories)
    assert mixes == fleet.setup.schedule.mixes_versions


def test_setup_that_does_not_fit_has_a_reason() -> None:
    assert "145.4 GB of weights" in setup_of("one_step", model=MODELS["72B"], train_devices=64).why_not
    assert setup_of("laminar", train_devices=1).why_not.startswith("training takes 3 x H800")
    assert setup_of("laminar", tp=8).why_not.startswith("a replica takes 8 x H800")


class LookingFleet(Fleet):
    """Checks the replicas once a second."""

    most_in_use = 0

    def _tick_data(self) -> None:
        super()._tick_data()
        for replica in self.replicas:
            decoding, residents = replica.body.decoding, replica.body.decoding.residents
            in_use = {sequence.weights for sequence in decoding.held()}
            assert in_use <= {residents.newest, *residents.older}
            assert len(residents.older) < self.setup.slots.num
            self.most_in_use = max(self.most_in_use, len(in_use))


@pytest.mark.parametrize("workload", ["math", "tools"])
@pytest.mark.parametrize("schedule", ["laminar_cap", "laminar_delta", "laminar_delta_cap"])
def test_cost_counts_exactly_the_weights_in_use(schedule: str, workload: str) -> None:
    """The newest version whole, and at most as many differences as there are slots left."""
    fleet = LookingFleet(setup_of(schedule, workload=workload))
    fleet.run()
    assert fleet.most_in_use > 1, "the run had older versions"
