"""Four relays in four processes: killed, frozen and starved."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from engine.live.weights.offered_bytes import map_version
from engine.pipeline.relay.members import DEAD_AFTER_S
from engine.weights.hashes import verify_weights
from tests.engine.live.process.starving import starved
from tests.engine.live.relay.tier import Tier

pytestmark = pytest.mark.ray

NUM_RELAYS = 4
NUM_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def tier(own_ray: str) -> Iterator[Tier]:
    import ray

    tier = Tier(ray, num_relays=NUM_RELAYS, num_bytes=NUM_BYTES)
    yield tier
    tier.end_and_sweep()


@pytest.mark.proof
def test_version_reaches_all_relays_and_replicas_map_it(tier: Tier) -> None:
    last = tier.settle()[-1]
    num_chunks = tier.view(last).num_chunks
    changed = tier.publish()
    tier.wait_for(changed)
    assert tier.view(last).num_chunks == num_chunks + 1, "the second version sends only its changes, in one chunk"
    assert [tier.view(host).num_useless_chunks for host in tier.live] == [0] * NUM_RELAYS
    served = [map_version(message.manifest, message.payload) for message in tier.serve_replicas()]
    for weights in served:
        verify_weights(weights)
        assert weights.buffer.readonly and weights.manifest.weights == changed
    assert len({weights.manifest.identity for weights in served}) == 1


@pytest.mark.long
def test_frozen_relay_blocks_no_other_and_catches_up(tier: Tier) -> None:
    master, second, *_ = tier.settle()
    frozen = tier.view(second).pid
    os.kill(frozen, signal.SIGSTOP)
    try:
        newest = tier.publish()
        tier.wait_for(newest, but=second)
    finally:
        os.kill(frozen, signal.SIGCONT)
    tier.wait_for(newest)
    assert tier.view(master).leads


@pytest.mark.long
def test_starved_relay_is_not_buried(tier: Tier) -> None:
    master, second, *_ = tier.settle()
    others = [host for host in tier.live if host != second]
    before = [tier.view(host).num_buried for host in others]
    with starved(tier.view(second).pid):
        time.sleep(4 * DEAD_AFTER_S)
        assert [tier.view(host).num_buried for host in others] == before
    newest = tier.publish()
    tier.wait_for(newest)
    assert tier.view(master).leads


@pytest.mark.long
def test_relay_killed_in_broadcast_costs_no_chunk_twice(tier: Tier) -> None:
    _, second, third, last = tier.settle()
    version, doomed = max(tier.view(third).visible), tier.view(second).pid
    for host in (third, last):  # both hold nothing now: the whole version travels to them through the second
        tier.kill(host)
        tier.restart(host)
    tier.wait_for_chunks(third, 1)
    os.kill(doomed, signal.SIGKILL)
    tier.dead.add(second)
    tier.wait_for(version)
    views = [tier.view(host) for host in (third, last)]
    assert [view.num_useless_chunks for view in views] == [0, 0]
    assert views[0].num_chunks == views[1].num_chunks == tier.num_chunks
    tier.restart(second)
    tier.settle()


@pytest.mark.long
def test_killed_master_is_replaced_and_its_version_republished(tier: Tier) -> None:
    master, second, *others = tier.settle()
    newest = tier.publish()
    tier.kill(master)  # before or after it began to forward
    tier.wait_for(newest)
    tier.wait_until_stored(newest)
    assert tier.chain() == (second, *others) and tier.view(second).leads
    tier.restart(master)
    assert tier.settle()[0] == second, "a restarted relay joins as a follower"
