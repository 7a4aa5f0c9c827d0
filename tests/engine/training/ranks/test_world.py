"""Progress that a rank reports reaches the ranks that wait for it."""

from datetime import timedelta

from torch.distributed import HashStore  # type: ignore[attr-defined]

from engine.process.progress import progress_reporter, working
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
    with second.progress().attached():
        for number in (1, 2):
            with working("write"):
                pass
            assert first.num_reports() == number
    with working("train"):
        pass
    assert first.num_reports() == 2, "progress of other threads does not count"
    with second.progress().attached():
        fetched = progress_reporter()
    fetched()
    assert first.num_reports() == 3, "progress of a library's threads for the rank does"
