"""A batch that jumps from event to event equals a batch that takes one step after the other."""

from collections import deque

import pytest

from engine.pipeline.records import GroupKey, SampleKey
from engine.policy.lineage import WeightsId
from engine.sim.chance import Chance
from engine.sim.costs.decode import DecodeCost
from engine.sim.costs.slots import DeltaCost
from engine.sim.fleet.decoding import Decoding
from engine.sim.fleet.sequence import Sequence

COST = DecodeCost(weights_s=0.005, kv_s=2e-6, row_s=0.0004, overhead_s=0.001)
PREFILL_S = 1e-4
OLD, NEW = WeightsId(0, 1), WeightsId(0, 2)


def sequence(number: int, tokens: int, *, weights: WeightsId = OLD, prompt: int = 10) -> Sequence:
    key = SampleKey(group=GroupKey(ordinal=number), sample=0)
    return Sequence(
        key=key, lease=1, weights=weights, prompt=prompt, left=[tokens], calls=deque(), context=prompt, is_cached=True
    )


def run(decoding: Decoding) -> list[tuple[float, int]]:
    """The time at which each sequence ended."""
    ends = []
    while (at := decoding.next_at()) is not None:
        decoding.arrive()
        ends += [(at, its.key.group.ordinal) for its in decoding.ended()]
        decoding.admit(at)
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_jumps_end_sequences_when_single_steps_do(seed: int) -> None:
    chance = Chance(seed, "batch")
    lengths = [chance.whole(1, 400) for _ in range(30)]
    decoding = Decoding(COST, prefill_s=PREFILL_S, kv_tokens=10**6, max_batch=8)
    decoding.add([sequence(at, tokens) for at, tokens in enumerate(lengths)], 0.0)
    now, waiting, ends = 0.0, list(enumerate(lengths)), []
    running: list[list[int]] = []
    while running or waiting:
        while waiting and len(running) < 8:
            number, tokens = waiting.pop(0)
            running.append([number, tokens, 10])
        now += COST.step_s(len(running), sum(context for _, _, context in running))
        running = [[number, left - 1, context + 1] for number, left, context in running]
        ends += [(now, number) for number, left, _ in running if left == 0]
        running = [each for each in running if each[1]]
    leapt = run(decoding)
    assert sorted(number for _, number in leapt) == list(range(30))
    assert [at for at, _ in sorted(leapt)] == pytest.approx([at for at, _ in sorted(ends)])
    assert decoding.num_written == sum(lengths)


def test_measuring_in_between_changes_nothing() -> None:
    one, other = (Decoding(COST, prefill_s=PREFILL_S, kv_tokens=10**6, max_batch=8) for _ in range(2))
    for decoding in (one, other):
        decoding.add([sequence(at, 50 + 30 * at) for at in range(6)], 0.0)
    looked = 0.0
    while (at := other.next_at()) is not None:
        while looked < at:
            other.advance(looked)
            looked += 0.0137
        other.arrive()
        other.ended()
    run(one)
    assert other.busy_s == pytest.approx(one.busy_s) and other.num_written == one.num_written


def test_two_versions_read_their_weights_one_after_the_other() -> None:
    alone, mixed = (Decoding(COST, prefill_s=PREFILL_S, kv_tokens=10**6, max_batch=8) for _ in range(2))
    alone.add([sequence(at, 100) for at in range(2)], 0.0)
    mixed.add([sequence(0, 100), sequence(1, 100, weights=NEW)], 0.0)
    (first, _), (second, _) = run(alone)[-1], run(mixed)[-1]
    assert second - first == pytest.approx(100 * (COST.weights_s + COST.overhead_s))


def test_latest_arrival_is_evicted_and_prefills_again() -> None:
    decoding = Decoding(COST, prefill_s=PREFILL_S, kv_tokens=500, max_batch=8)
    decoding.add([sequence(at, 200) for at in range(4)], 0.0)
    ends = run(decoding)
    assert len(ends) == 4 and decoding.num_evicted > 0
    assert decoding.num_written == 800
    assert decoding.num_prefilled > 0 and decoding.held_up_s == pytest.approx(decoding.num_prefilled * PREFILL_S)


def test_a_move_takes_the_tokens_along() -> None:
    source, host = (Decoding(COST, prefill_s=PREFILL_S, kv_tokens=10**6, max_batch=8) for _ in range(2))
    moving = sequence(1, 300)
    source.add([sequence(0, 50), moving], 0.0)
    source.advance(0.4)
    taken = source.take_out([moving.key])
    assert taken == [moving] and 0 < moving.num_written < 300
    host.add(taken, 1.0)
    assert [number for _, number in run(host)] == [1]
    assert moving.num_written == 300 and host.num_prefilled == 0


def deltas(kv_tokens: int = 10**6) -> Decoding:
    slots = DeltaCost(changed=0.1, copy_s=COST.weights_s, copy_tokens=1_000, row_s=0.01, launch_s=0.0005)
    return Decoding(COST, prefill_s=PREFILL_S, kv_tokens=kv_tokens, max_batch=8, slots=slots)


def test_only_rows_of_older_versions_get_a_correction() -> None:
    alone, mixed = deltas(), deltas()
    for decoding, other in ((alone, NEW), (mixed, OLD)):
        decoding.install(NEW, keeps=[OLD])
        decoding.add([sequence(0, 100, weights=NEW), sequence(1, 100, weights=other)], 0.0)
    (first, _), (second, _) = run(alone)[-1], run(mixed)[-1]
    assert second - first == pytest.approx(100 * (0.0005 + max(0.2 * COST.weights_s, 0.1 * 0.01)))


def test_older_versions_take_room_until_the_next_install() -> None:
    decoding = deltas(kv_tokens=500)
    decoding.install(OLD, keeps=[])
    decoding.add([sequence(at, 100) for at in range(4)], 0.0)
    assert decoding.install(NEW, keeps=[OLD]) == pytest.approx(2.2 * COST.weights_s)
    ends = run(decoding)
    assert len(ends) == 4 and decoding.num_written == 400
    assert decoding.num_evicted > 0, "440 tokens and the 200 that a difference takes are more than there is room for"
    decoding.install(WeightsId(0, 3), keeps=[])
    before = decoding.num_evicted
    decoding.add([sequence(10 + at, 100, weights=WeightsId(0, 3)) for at in range(4)], 1e3)
    assert len(run(decoding)) == 4 and decoding.num_evicted == before
