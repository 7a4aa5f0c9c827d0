"""A relay killed while it forwards a large model: the relay behind it continues from the chunks that it has."""

import math
from collections.abc import Iterator

import psutil
import pytest

from tests.engine.live.relay.tier import Tier

pytestmark = [pytest.mark.ray, pytest.mark.soak]

NUM_RELAYS = 3
NUM_BYTES = 3 * 10**9
HELD = (NUM_RELAYS + 1) * NUM_BYTES  # by each relay, and by the publisher


@pytest.fixture
def tier(own_ray: str) -> Iterator[Tier]:
    import ray

    if psutil.virtual_memory().available < HELD:
        pytest.skip(f"takes {HELD / 1e9:.0f} GB")
    tier = Tier(ray, num_relays=NUM_RELAYS, num_bytes=NUM_BYTES)
    yield tier
    tier.end_and_sweep()


def test_relay_killed_at_60_percent_of_3_gb_costs_no_chunk_twice(tier: Tier) -> None:
    _, second, last = tier.settle()
    pids = {host: tier.view(host).pid for host in tier.live}
    version = max(tier.view(second).visible)
    tier.kill(last)
    tier.restart(last)
    tier.wait_for_chunks(last, math.ceil(0.6 * tier.num_chunks))
    assert version not in tier.view(last).visible, "the last relay had the whole version before the second was killed"
    tier.kill(second)
    tier.wait_for(version)
    view = tier.view(last)
    assert (view.num_chunks, view.num_useless_chunks) == (tier.num_chunks, 0)
    tier.restart(second)
    tier.wait_for(version)
    assert all(tier.view(host).pid == pid for host, pid in pids.items() if host not in (second, last))
