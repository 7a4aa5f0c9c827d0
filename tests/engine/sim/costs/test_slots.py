"""Costs of several versions in one replica: arithmetic by hand, and properties that hold for all constants."""

import pytest

from engine.sim.costs.constants import AS_THEY_STAND
from engine.sim.costs.decode import GEMM_SHARE, ONE_VERSION, DecodeCost
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.handover import handover_s
from engine.sim.costs.lora import adapter_bytes, adapter_weights
from engine.sim.costs.memory import room_for_kv
from engine.sim.costs.models import MODELS
from engine.sim.costs.slots import (
    CHANGED_SHARE,
    SMALL_LAUNCH,
    SPARSE_SHARE,
    SlotCost,
    Slots,
    changed_in,
    of_a_copy,
)
from engine.sim.costs.training import fewest_devices, training_cost

H800 = DEVICES["H800"]
EVERY_KIND = [Slots(num=4), Slots(num=4, kept="delta"), Slots.of_lora(4, 32)]
BY_KIND = pytest.mark.parametrize("slots", EVERY_KIND, ids=lambda slots: slots.kept)
BY_MODEL = pytest.mark.parametrize("name", MODELS)


def priced(name: str, slots: Slots) -> tuple[DecodeCost, SlotCost]:
    model = MODELS[name]
    decode = DecodeCost.of(H800, model, tp=model.tensor_parallel)
    return decode, slots.cost(decode, model)


@BY_MODEL
@BY_KIND
def test_further_version_never_saves_time_or_memory(slots: Slots, name: str) -> None:
    decode, cost = priced(name, slots)
    for batch in (4, 64, 256):
        steps = [
            decode.step_s(batch, 2_000 * batch, load=cost.load([(age, batch / num) for age in range(num)]))
            for num in range(1, 5)
        ]
        assert steps == sorted(steps)
    taken = [cost.taken_tokens(range(1, num)) for num in range(1, 5)]
    assert taken == sorted(taken) and taken[0] == 0
    rooms = [
        room_for_kv(H800, MODELS[name], tp=8, slots=Slots(num=num, kept=slots.kept, rank=32), at_least_tokens=1)
        for num in range(1, 5)
    ]
    assert [room.kv_tokens for room in rooms] == sorted((room.kv_tokens for room in rooms), reverse=True)


@BY_MODEL
def test_rows_on_the_newest_cost_adapters_but_no_differences(name: str) -> None:
    assert priced(name, Slots(num=4, kept="delta"))[1].load([(0, 64)]) == ONE_VERSION
    assert priced(name, Slots(num=4))[1].load([(0, 64)]) == ONE_VERSION
    assert priced(name, Slots.of_lora(4, 32))[1].load([(0, 64)]).overlapped_s > 0


def test_difference_over_several_steps_is_their_union() -> None:
    assert changed_in(0.02, 0) == 0 and changed_in(0.02, 1) == pytest.approx(0.02)
    assert changed_in(0.02, 2) == pytest.approx(1 - 0.98 * 0.98)
    shares = [changed_in(0.05, versions) for versions in range(200)]
    assert shares == sorted(shares) and shares[-1] < 1
    assert all(share <= versions * 0.05 + 1e-12 for versions, share in enumerate(shares))


def test_difference_is_four_bytes_a_value_and_at_most_a_copy() -> None:
    bytes_of_8b = 8e9 * 2 * of_a_copy(0.01, 1)
    assert bytes_of_8b == pytest.approx(8e9 * 0.01 * 4)
    assert of_a_copy(0.05, 100) == 1
    _, cost = priced("7B", Slots(num=4, kept="delta"))
    assert cost.taken_tokens([10_000]) <= MODELS["7B"].weight_bytes / MODELS["7B"].kv_bytes
    assert cost.load([(0, 8), (10_000, 8)]).weights == 2


def test_correction_takes_the_longer_of_reading_and_arithmetic() -> None:
    model = MODELS["7B"]
    decode, cost = priced("7B", Slots(num=4, kept="delta"))
    launch_s, changed = 7 * model.num_layers * SMALL_LAUNCH.value, CHANGED_SHARE.value
    read_s = model.num_weights * changed * 4 / (H800.bytes_per_s * 0.8)
    row_s = 2 * model.num_weights * changed / (H800.flops * SPARSE_SHARE.value)
    assert cost.load([(0, 9), (1, 1)]).overlapped_s == pytest.approx(launch_s + max(read_s, row_s))
    assert cost.load([(0, 9), (1, 100)]).overlapped_s == pytest.approx(launch_s + 100 * row_s)
    assert decode.row_s == pytest.approx(2 * model.num_weights / (H800.flops * GEMM_SHARE.value))


@BY_MODEL
def test_an_older_difference_costs_more_until_it_is_a_copy(name: str) -> None:
    decode, cost = priced(name, Slots(num=2, kept="delta"))
    for rows in (1, 128):
        steps = [decode.step_s(128, 0, load=cost.load([(0, 128 - rows), (age, rows)])) for age in range(30)]
        assert steps == sorted(steps)
    taken = [cost.taken_tokens([age]) for age in range(30)]
    assert taken == sorted(taken)


def test_installation_rebuilds_the_differences() -> None:
    model = MODELS["7B"]
    decode, cost = priced("7B", Slots(num=4, kept="delta"))
    assert cost.making_s([], []) == pytest.approx(2 * decode.weights_s)
    made = cost.making_s([1], [1, 2]) - cost.making_s([], [])
    share = CHANGED_SHARE.value
    values = changed_in(share, 1) * 2 + changed_in(share, 2)
    assert made == pytest.approx(values * model.num_weights * 4 / (H800.bytes_per_s * 0.8))
    assert all(priced("7B", slots)[1].making_s([1], [1, 2]) == 0 for slots in EVERY_KIND if slots.kept != "delta")


def test_room_is_short_if_older_versions_displace_the_longest() -> None:
    model, slots = MODELS["7B"], Slots(num=4, kept="delta")
    alone = room_for_kv(H800, model, tp=1, slots=Slots(), at_least_tokens=1).kv_tokens
    assert room_for_kv(H800, model, tp=1, slots=slots, at_least_tokens=1).kv_tokens == alone
    refused = room_for_kv(H800, model, tp=1, slots=slots, at_least_tokens=alone)
    assert refused.kv_tokens == 0 and "differences of 3 older versions" in refused.why_not


@pytest.mark.parametrize(
    ("name", "of_config"),
    [("7B", 28 * 90_112), ("32B", 64 * 131_072), ("72B", 80 * 164_480)],
)
def test_adapters_are_as_large_as_public_configs_make_them(name: str, of_config: int) -> None:
    assert adapter_weights(MODELS[name], 1) == pytest.approx(of_config, rel=0.06)
    assert adapter_bytes(MODELS[name], 64) == 2 * adapter_bytes(MODELS[name], 32) < MODELS[name].weight_bytes / 20


def test_training_an_adapter_takes_less_of_everything() -> None:
    model = MODELS["72B"]
    assert fewest_devices(H800, model, lora_rank=32) < fewest_devices(H800, model)
    whole, lora = (training_cost(H800, model, devices=64, tokens=2e7, updates=4, lora_rank=rank) for rank in (0, 32))
    assert lora.update_s == pytest.approx(whole.update_s * 4 / 6) and lora.log_probs_s == whole.log_probs_s
    assert handover_s(model, bytes_sent=adapter_bytes(model, 32)) < handover_s(model) / 20


def test_a_sweep_reaches_the_share_that_changes() -> None:
    model, slots = MODELS["7B"], Slots(num=2, kept="delta")
    more = AS_THEY_STAND.with_factor(CHANGED_SHARE, 2.5)
    decode = DecodeCost.of(H800, model, tp=1)
    few, many = (slots.cost(decode, model, book=book).taken_tokens([1]) for book in (AS_THEY_STAND, more))
    assert many == pytest.approx(2.5 * few, rel=1e-3)
