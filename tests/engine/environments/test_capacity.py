"""The number of sandboxed processes that a host runs at once."""

import pytest

from engine.environments.sandbox.capacity import Capacity, host_capacity

GIB = 1 << 30


@pytest.mark.parametrize(
    ("num_cores", "gib", "computing", "most"),
    [(1, 4, 2, 8), (2, 24, 2, 12), (16, 128, 8, 64), (128, 2_048, 64, 512), (192, 16, 8, 8)],
)
def test_capacity_follows_cores_and_memory(num_cores: float, gib: int, computing: int, most: int) -> None:
    capacity = Capacity.of(num_cores=num_cores, memory_bytes=gib * GIB)
    assert (capacity.computing, capacity.most) == (computing, most)
    assert capacity.programs == 2 * computing


def test_workers_of_one_job_share_the_memory_of_a_host() -> None:
    """A job may ask for many workers; other teams' jobs are on the same host."""
    alone, shared, crowded = (
        Capacity.of(num_cores=128, memory_bytes=2_048 * GIB, num_workers=number) for number in (1, 8, 256)
    )
    assert (alone.most, shared.most, shared.computing) == (512, 128, 64)
    assert (crowded.most, crowded.computing) == (8, 8)


def test_this_host_has_capacity_for_a_call() -> None:
    assert 2 <= host_capacity().computing <= host_capacity().most
