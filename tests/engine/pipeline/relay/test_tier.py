"""Relays under every kind of fault: no torn version, one master a claim, and finally all relays up to date."""

from functools import partial

import pytest

from engine.pipeline.messages.addresses import TRAINER, relay_address
from engine.policy.lineage import WeightsId
from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.weights.port import BufferId
from tests.engine.pipeline.relay.relay_world import NUM_CHUNKS, RelayWorld

SEEDS_PER_TEST = 10


def storm(seed: int) -> RelayWorld:
    """A random subset of faults for 40 s, then peace."""
    chance = Chance(seed, "storm")
    faults = Faults(
        delay_s=0.5 if chance.happens(0.5) else 0.002,
        drop=chance.uniform(0, 0.2) if chance.happens(0.5) else 0.0,
        duplicate=chance.uniform(0, 0.3) if chance.happens(0.5) else 0.0,
        corrupt=chance.uniform(0, 0.2) if chance.happens(0.5) else 0.0,
    )
    num_relays = chance.whole(1, 6)
    world = RelayWorld(
        seed=seed, num_relays=num_relays, faults=faults, anchor_every=chance.whole(1, 4) if chance.happens(0.7) else 20
    )
    for _ in range(20):
        world.run_for(2.0)
        world.publish()
        if chance.happens(0.5):
            strike(world, chance, num_relays)
    world.heal()
    world.run_for(1.0)
    return world


def strike(world: RelayWorld, chance: Chance, num_relays: int) -> None:
    host = chance.whole(0, num_relays - 1)
    relay = world.relays[host]
    match chance.whole(0, 5):
        case 0 if relay.is_alive:
            world.kill(host)
        case 1 if not relay.is_alive:
            world.start(host, relay.incarnation + 1)
        case 2 if relay.is_alive and not relay.is_frozen:
            world.freeze(host)
        case 3 if relay.is_alive and relay.is_frozen:
            world.thaw(host)
        case 4:
            others = [relay_address(other) for other in range(num_relays) if other != host] + [TRAINER]
            world.cut |= {frozenset((relay_address(host), other)) for other in others if chance.happens(0.7)}
        case 5:
            world.cut.clear()
            if chance.happens(0.3):
                world.restart_trainer()
        case _:
            pass


def check(seed: int) -> None:
    try:
        world = storm(seed)
        newest = world.publish()
        world.run_until(lambda: world.everyone_has(newest) and len(world.leaders) == 1, within_s=60)
        world.run_until(lambda: newest in world.stored, within_s=30)
    except Exception as error:  # noqa: BLE001 - any failure must report its seed
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")


@pytest.mark.long_except("30")
@pytest.mark.parametrize("first", range(0, 40, SEEDS_PER_TEST))
def test_every_live_relay_gets_the_newest_version_after_faults(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        check(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1_000, 4_000, 100))
def test_after_any_of_many_storms(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


def calm(num_relays: int, *, anchor_every: int = 1, chunk_s: float = 0.001) -> RelayWorld:
    world = RelayWorld(seed=1, num_relays=num_relays, anchor_every=anchor_every, chunk_s=chunk_s)
    world.run_for(1.0)
    return world


def test_in_peace_every_chunk_crosses_every_hop_once() -> None:
    world = calm(5)
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=2)
    world.run_for(10)
    assert world.num_chunks_carried == 4 * NUM_CHUNKS
    assert world.leaders == [0] and world.stored == [newest]


def test_followers_with_the_previous_version_get_a_delta() -> None:
    world = calm(4, anchor_every=20, chunk_s=0.05)
    first = world.publish()
    world.run_until(lambda: world.everyone_has(first), within_s=2)
    whole = world.num_chunks_carried
    for _ in range(5):
        world.run_until(partial(world.everyone_has, world.publish()), within_s=2)
    assert whole == 3 * NUM_CHUNKS and world.num_chunks_carried == whole + 5 * 3


def test_fast_links_get_whole_versions_and_retry_deltas() -> None:
    world = calm(4, anchor_every=4, chunk_s=0.0001)
    carried = []
    for _ in range(12):
        before, newest = world.num_chunks_carried, world.publish()
        world.run_until(partial(world.everyone_has, newest), within_s=2)
        world.run_for(0.1)
        carried.append((world.num_chunks_carried - before) // 3)
    whole = NUM_CHUNKS
    assert carried == [whole, 1, whole, whole, whole, whole, 1, whole, whole, whole, whole, 1]


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_relay_that_dies_in_a_broadcast_is_skipped(victim: int) -> None:
    world = calm(5)
    newest = world.publish()
    world.run_until(lambda: world.num_chunks_carried >= NUM_CHUNKS * 2, within_s=2)
    world.kill(victim)
    assert not world.everyone_has(newest)
    took_s = world.run_until(lambda: world.everyone_has(newest), within_s=5)
    assert took_s <= 5
    world.run_for(20)
    assert [relay.body.num_useless_chunks for relay in world.live] == [0, 0, 0, 0]
    assert newest in world.stored


def chunks_of(world: RelayWorld, host: int, version: WeightsId) -> int:
    buffer = world.relays[host].body._buffers.get(BufferId(weights=version))
    return 0 if buffer is None else len(buffer.chunks)


def test_broadcast_is_pipelined_along_the_chain() -> None:
    world = calm(4)
    newest = world.publish()
    world.run_until(lambda: chunks_of(world, 0, newest) == NUM_CHUNKS, within_s=2)
    assert world.relays[0].brain.newest < newest, "no relay has its hashes yet"
    assert chunks_of(world, 3, newest) >= NUM_CHUNKS - 4, "one chunk a hop, and one that comes"
    world.run_until(lambda: world.everyone_has(newest), within_s=0.1)
    assert world.num_chunks_carried == 3 * NUM_CHUNKS


def test_chain_resumes_from_held_chunks_when_the_master_dies() -> None:
    world = calm(4)
    newest = world.publish()
    world.run_until(lambda: chunks_of(world, 0, newest) == NUM_CHUNKS * 2 // 3, within_s=2)
    world.kill(0)
    world.run_for(0.1)  # messages on their way arrive
    held, carried = [chunks_of(world, host, newest) for host in (2, 3)], world.num_chunks_carried
    assert min(held) >= NUM_CHUNKS // 2
    world.run_until(lambda: world.everyone_has(newest) and world.leaders == [1], within_s=15)
    assert world.num_chunks_carried - carried == 2 * NUM_CHUNKS - sum(held)
    assert [relay.body.num_useless_chunks for relay in world.live] == [0, 0, 0]


def test_frozen_relay_delays_no_other_and_catches_up() -> None:
    world = calm(4)
    world.freeze(1)
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=5)
    world.run_for(10)
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=1)
    world.thaw(1)
    world.run_until(lambda: world.everyone_has(newest), within_s=5)
    world.run_for(10)
    assert world.leaders == [0], "a relay that was frozen declares no peer dead"


def test_next_relay_replaces_a_dead_master_without_loss() -> None:
    world = calm(4)
    newest = world.publish()
    world.kill(0)
    took_s = world.run_until(lambda: world.everyone_has(newest) and world.leaders == [1], within_s=15)
    assert took_s <= 15
    world.start(0, 1)
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=5)
    assert world.leaders == [1], "a relay that returns follows"


def test_a_master_that_was_frozen_finds_its_word_refused() -> None:
    world = calm(3)
    world.freeze(0)
    world.publish()  # stays in the inbox of the frozen relay
    newest = world.publish()
    world.run_until(lambda: world.leaders[-1] == 1 and world.everyone_has(newest), within_s=15)
    world.thaw(0)
    world.run_until(lambda: world.leaders == [1], within_s=1)
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=5)


def test_one_missed_heartbeat_is_never_enough() -> None:
    world = calm(3)
    world.cut.add(frozenset((relay_address(0), relay_address(1))))
    world.run_for(2.0)
    world.cut.clear()
    world.run_for(5.0)
    assert world.leaders == [0] and {relay.brain.claim for relay in world.live} == {0}


def test_relay_that_was_cut_off_changes_nothing_on_return() -> None:
    world = calm(4)
    old = world.publish()
    world.run_until(lambda: world.everyone_has(old), within_s=2)
    others = (TRAINER, *map(relay_address, (0, 1, 3)))
    world.cut |= {frozenset((relay_address(2), other)) for other in others}
    newest = world.publish()
    world.run_until(lambda: world.relays[3].brain.newest == newest, within_s=6)
    world.run_for(20)
    assert world.relays[2].brain.newest == old and not world.relays[2].brain.leads
    world.cut.clear()
    world.run_until(lambda: world.everyone_has(newest), within_s=10)
    assert world.leaders == [0]


def test_chain_cut_in_two_has_one_master_after_repair() -> None:
    world = calm(4)
    world.cut |= {frozenset((relay_address(a), relay_address(b))) for a in (0, 1) for b in (2, 3)}
    world.run_for(20)
    newest = world.publish()
    world.run_for(5)
    world.cut.clear()
    world.run_until(lambda: world.everyone_has(newest) and len(world.leaders) == 1, within_s=20)


def test_when_all_relays_die_the_trainer_offers_its_newest_again() -> None:
    world = calm(3)
    newest = world.publish()
    world.run_until(lambda: newest in world.stored, within_s=5)
    for host in range(3):
        world.kill(host)
    world.heal()
    world.run_until(lambda: world.everyone_has(newest), within_s=30)


def test_versions_of_a_restarted_trainer_win() -> None:
    world = calm(3)
    for _ in range(4):
        world.publish()
        world.run_for(1)
    world.restart_trainer()
    world.run_until(lambda: world.everyone_has(WeightsId(1, 2)), within_s=5)
    assert world.publish() == WeightsId(1, 3)
    world.run_until(lambda: world.everyone_has(WeightsId(1, 3)), within_s=5)
