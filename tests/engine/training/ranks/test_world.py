"""Ranks in one process, each on a thread, that have a store in common."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
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


def test_the_others_wait_for_what_rank_0_does_beyond_the_bound_of_a_collective() -> None:
    first, second = worlds()
    done: list[str] = []

    def read() -> str:
        begun = time.monotonic()
        while time.monotonic() < begun + 50 * BOUND.total_seconds():
            done.append("a piece")
        done.append("all")
        return "what it says"

    with ThreadPoolExecutor() as threads:
        for _ in range(2):  # a second turn is another one
            done.clear()
            other = threads.submit(lambda: (second.first(read), done[-1]))
            assert first.first(read) == "what it says"
            assert other.result() == (None, "all")


def test_when_rank_0_fails_the_others_do_not_wait_on() -> None:
    first, second = worlds()

    def fail() -> None:
        raise ValueError("no checkpoint")

    with ThreadPoolExecutor() as threads:
        other = threads.submit(second.first, fail)
        with pytest.raises(ValueError, match="no checkpoint"):
            first.first(fail)
        assert other.result() is None


def test_what_another_rank_is_at_is_told_to_those_who_wait() -> None:
    first, second = worlds()
    with second.signs().heard_here():
        for number in (1, 2):
            with at_work("write", num_bytes=1.0):
                pass
            assert first.num_signs() == number
    with at_work("train"):
        pass
    assert first.num_signs() == 2, "what is done on other threads tells nothing of a disk"
    with second.signs().heard_here():
        fetched = sign_from_anywhere()
    fetched()
    assert first.num_signs() == 3, "but threads that a library works on for a rank do"
