"""A relay that waits for a core is not dead; a stopped relay is declared dead as fast as before."""

import pytest

from engine.pipeline.relay.members import DEAD_AFTER_S, Members
from tests.engine.pipeline.relay.relay_world import TICK_S, RelayWorld


@pytest.fixture
def world() -> RelayWorld:
    world = RelayWorld(seed=1, num_relays=4, anchor_every=1)
    world.run_for(1.0)
    return world


def starve_for(world: RelayWorld, host: int, seconds: float) -> None:
    world.starve(host)
    world.run_for(seconds)
    world.give_a_core(host)
    world.run_for(1.0)


@pytest.mark.parametrize("host", [0, 2])
def test_relay_without_a_core_keeps_its_place(world: RelayWorld, host: int) -> None:
    starve_for(world, host, 60.0)
    assert world.num_buried == 0 and world.leaders == [0]
    newest = world.publish()
    world.run_until(lambda: world.everyone_has(newest), within_s=2)


@pytest.mark.parametrize("host", [0, 2])
def test_stopped_relay_is_declared_dead_as_fast_as_before(world: RelayWorld, host: int) -> None:
    starve_for(world, host, 60.0)
    world.run_for(120.0)  # its waits have faded
    world.freeze(host)
    took_s = world.run_until(lambda: world.num_buried > 0, within_s=10.0)
    assert took_s <= DEAD_AFTER_S + 3 * TICK_S


def test_silence_limit_of_a_far_relay_grows_with_its_waits(world: RelayWorld) -> None:
    world.is_one_host = False
    for waits_s in (2.0, 6.0, 15.0):
        starve_for(world, 1, waits_s)
    assert world.num_buried == 0
    starve_for(world, 2, 6.0)
    assert world.num_buried > 0, "it had reported no waits"


def test_killed_relay_is_missed_though_it_was_starved(world: RelayWorld) -> None:
    world.starve(1)
    world.run_for(30.0)
    world.relays[1].starved_since = None  # its process is gone
    world.kill(1)
    world.run_until(lambda: world.num_buried > 0, within_s=DEAD_AFTER_S + 1)


@pytest.mark.parametrize(("waited_s", "num_buried"), [(1.0, 0), (0.0, 1)])
def test_starved_relay_declares_no_peer_dead(waited_s: float, num_buried: int) -> None:
    members = Members(host=1, hosts=(0, 1), incarnation=0)
    members.notice_time(0.0)
    members.tick(0.0)
    members.receive(0, incarnation=0, claim=0, now=0.0)
    for second in range(1, 10):
        members.excuse(1, waited_s, float(second))
        members.tick(float(second))
    assert members.num_buried == num_buried


def test_reported_waits_of_a_relay_fade(world: RelayWorld) -> None:
    members = Members(host=0, hosts=(0, 1), incarnation=0)
    members.excuse(0, 4.0, 0.0)
    assert members.waits_s == 4.0
    for _ in range(200):
        members.excuse(0, 0.0, 0.0)
    assert members.waits_s < 0.1
