"""Progress that a rank reports reaches the ranks that wait for it."""

from datetime import timedelta

from torch.distributed import HashStore  # type: ignore[attr-defined]

from engine.signs import at_work, sign_from_anywhere
from engine.training.ranks.world import World

BOUND = timedelta(milliseconds=1)


def worlds() -> tuple[World, World]:
    store = HashStore()
    store.set_timeout(BOUND)
    first, second = (
        World(rank=rank, num_ranks=2, store=store, address="", timeout_s=BOUND.total_seconds()) for rank in (0, 1)
    )
    return first, second


def test_progress_of_a_rank_reaches_waiting_ranks() -> None:
    first, second = worlds()
    with second.signs().heard_here():
        for number in (1, 2):
            with at_work("write"):
                pass
            assert first.num_signs() == number
    with at_work("train"):
        pass
    assert first.num_signs() == 2, "progress of other threads does not count"
    with second.signs().heard_here():
        fetched = sign_from_anywhere()
    fetched()
    assert first.num_signs() == 3, "progress of a library's threads for the rank does"
