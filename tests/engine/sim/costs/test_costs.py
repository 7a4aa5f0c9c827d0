"""The cost models: each formula against arithmetic by hand or brute force, and properties that hold for all constants.

No test here requires a schedule to be faster.
"""

import pytest

from engine.pipeline.records import GroupKey, SampleKey
from engine.sim.costs.calibration import CONSTANTS, FITS, TARGETS, Target
from engine.sim.costs.constants import AS_THEY_STAND
from engine.sim.costs.decode import ALL_REDUCE, GEMM_SHARE, ONE_VERSION, DecodeCost, Load
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.environment import FEWEST_CALLS, MOST_CALLS, Tools
from engine.sim.costs.handover import handover_s
from engine.sim.costs.install import install_s
from engine.sim.costs.lengths import Lengths
from engine.sim.costs.memory import room_for_kv
from engine.sim.costs.models import MODELS
from engine.sim.costs.relay import broadcast_s
from engine.sim.costs.repack import move_s
from engine.sim.costs.slots import Slots, WholeCost
from engine.sim.costs.switch import switch_s
from engine.sim.costs.training import fewest_devices, training_cost

H800 = DEVICES["H800"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what)
def test_calibration_meets_its_targets(target: Target) -> None:
    assert abs(target.off_by) < 0.04, (target.modelled(), target.published)


def test_every_fitted_constant_has_its_own_targets() -> None:
    fitted = {constant.name for constant in CONSTANTS if constant.origin == "fitted"}
    assert {fit.constant.name for fit in FITS} == fitted
    assert {target.fixes.name for target in TARGETS if target.fixes is not None} == fitted
    assert sum(fit.num_targets for fit in FITS) <= len(TARGETS)


def test_constants_have_unique_names_and_sources() -> None:
    assert len({constant.name for constant in CONSTANTS}) == len(CONSTANTS)
    assert all(constant.source for constant in CONSTANTS)
    assert all(constant.sweep[0] < 1 < constant.sweep[1] for constant in CONSTANTS if constant.origin == "assumed")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("load", [ONE_VERSION, Load(weights=2, launches=2), Load(overlapped_s=0.003)])
@pytest.mark.parametrize(("batch", "context"), [(1, 0), (40, 90_000), (256, 60_000), (512, 20_000)])
def test_the_closed_form_of_many_steps_is_their_sum(name: str, load: Load, batch: int, context: int) -> None:
    cost = DecodeCost.of(H800, MODELS[name], tp=MODELS[name].tensor_parallel)
    one_by_one = sum(cost.step_s(batch, context + at * batch, load=load) for at in range(400))
    assert cost.steps_s(400, batch, context, load=load) == pytest.approx(one_by_one, rel=1e-9)


@pytest.mark.parametrize(("batch", "context"), [(1, 0), (40, 90_000), (256, 60_000), (512, 20_000)])
@pytest.mark.parametrize("seconds", [0.0, 1e-4, 0.5, 7.0, 300.0])
def test_steps_within_a_time_are_all_that_fit_and_no_more(batch: int, context: int, seconds: float) -> None:
    cost = DecodeCost.of(H800, MODELS["7B"], tp=1)
    steps = cost.steps_within(seconds, batch, context)
    assert cost.steps_s(steps, batch, context) <= seconds < cost.steps_s(steps + 1, batch, context)


def test_a_step_is_the_slower_of_reading_and_arithmetic() -> None:
    cost, model = DecodeCost.of(H800, MODELS["7B"], tp=1), MODELS["7B"]
    read_s = (model.weight_bytes + 10_000 * model.kv_bytes) / (3.35e12 * 0.8)
    assert cost.step_s(10, 10_000) == pytest.approx(read_s + cost.overhead_s)
    assert cost.step_s(2_000, 10_000) == pytest.approx(
        2 * 7.6e9 * 2_000 / (989e12 * GEMM_SHARE.value) + cost.overhead_s
    )
    assert cost.step_s(cost.free_batch, 0) < cost.step_s(2 * cost.free_batch, 0)


def test_second_version_costs_a_read_and_memory_of_its_weights() -> None:
    model = MODELS["32B"]
    cost = DecodeCost.of(H800, model, tp=4)
    one_more_s = cost.step_s(8, 0, load=WholeCost().load([(0, 4), (1, 4)])) - cost.step_s(8, 0)
    assert one_more_s == pytest.approx(cost.weights_s + cost.overhead_s)
    one, two = (room_for_kv(H800, model, tp=4, slots=Slots(num=num), at_least_tokens=1).kv_tokens for num in (1, 2))
    assert one - two == pytest.approx(model.weight_bytes / model.kv_bytes, abs=1)


def test_room_that_is_too_small_has_a_reason() -> None:
    refused = room_for_kv(DEVICES["L40S"], MODELS["72B"], tp=1, slots=Slots(), at_least_tokens=18_432)
    assert refused.kv_tokens == 0 and "145.4 GB of weights" in refused.why_not
    assert fewest_devices(H800, MODELS["72B"]) > 8


def test_device_with_a_better_figure_is_never_slower() -> None:
    for worse, better in (("H100", "H200"), ("H800", "H100")):
        for model in MODELS.values():
            costs = [DecodeCost.of(DEVICES[name], model, tp=8) for name in (worse, better)]
            slow, fast = ([cost.step_s(batch, 3_000 * batch) for batch in (1, 64, 512)] for cost in costs)
            assert all(after <= before for before, after in zip(slow, fast, strict=True))


def test_training_slows_with_fewer_devices_and_more_updates() -> None:
    def seconds(devices: int, updates: int = 4) -> float:
        return training_cost(H800, MODELS["7B"], devices=devices, tokens=2e7, updates=updates).total_s

    assert seconds(64) < seconds(32) < 2 * seconds(64)
    assert seconds(64, updates=16) > seconds(64)


def test_stall_grows_with_weights_broadcast_hardly_with_relays() -> None:
    model = MODELS["72B"]
    assert handover_s(model) == pytest.approx(1.4, rel=0.02)
    assert broadcast_s(model, relays=127) < 5 * broadcast_s(model, relays=2)
    assert broadcast_s(model, relays=127, bytes_sent=model.weight_bytes / 50) < broadcast_s(model, relays=127) / 2


def test_more_bytes_over_a_link_take_longer() -> None:
    assert install_s(H800, MODELS["72B"], tp=4) > install_s(H800, MODELS["72B"], tp=8)
    assert move_s(H800, MODELS["7B"], tp=1, tokens=2e5) > move_s(H800, MODELS["7B"], tp=1, tokens=1e5)
    assert switch_s(H800, MODELS["7B"], devices=16, tp=1) > switch_s(H800, MODELS["7B"], devices=64, tp=1)


def test_a_sweep_reaches_its_constant_alone() -> None:
    doubled = AS_THEY_STAND.with_factor(ALL_REDUCE, 2.0)
    before, after = (DecodeCost.of(H800, MODELS["72B"], tp=8, book=book) for book in (AS_THEY_STAND, doubled))
    assert after.overhead_s - before.overhead_s == pytest.approx(160 * ALL_REDUCE.value)
    assert (after.weights_s, after.kv_s, after.row_s) == (before.weights_s, before.kv_s, before.row_s)


def test_sample_has_the_same_length_and_calls_in_every_schedule() -> None:
    key = SampleKey(group=GroupKey(ordinal=7), sample=3)
    assert Lengths().response(1, key) == Lengths().response(1, key) != Lengths().response(2, key)
    assert Tools().calls(1, key) == Tools().calls(1, key)
    assert all(FEWEST_CALLS <= len(Tools().calls(seed, key)) <= MOST_CALLS for seed in range(50))


def test_lengths_have_the_spread_that_was_published() -> None:
    keys = [SampleKey(group=GroupKey(ordinal=at), sample=sample) for at in range(500) for sample in range(8)]
    drawn = sorted(Lengths(longest=10**6).response(1, key) for key in keys)
    assert drawn[len(drawn) * 99 // 100] / drawn[len(drawn) // 2] == pytest.approx(10, rel=0.2)
