"""Whole or delta: the kind that was faster of late, the other now and then."""

from engine.policy.travel import Travel


def after(*took: tuple[str, float], again_after: int = 3) -> Travel:
    travel = Travel(again_after=again_after)
    for kind, seconds in took:
        travel.record("delta" if kind == "delta" else "whole", num_bytes=100, seconds=seconds)
    return travel


def test_delta_is_tried_first() -> None:
    assert after().prefers_delta and after(("whole", 1.0)).prefers_delta


def test_faster_kind_is_chosen() -> None:
    assert after(("whole", 1.0), ("delta", 0.5)).prefers_delta
    assert not after(("whole", 1.0), ("delta", 1.5)).prefers_delta
    assert after(("whole", 1.0), ("delta", 1.5), ("whole", 2.0)).prefers_delta, "the links have become slower"


def test_times_count_by_the_byte() -> None:
    travel = after(("whole", 1.0), ("delta", 0.9))
    travel.record("whole", num_bytes=1_000, seconds=1.0)
    assert not travel.prefers_delta


def test_slower_kind_is_retried_after_a_while() -> None:
    slow = [("whole", 1.0), ("delta", 1.5)]
    assert not after(*slow, ("whole", 1.0), ("whole", 1.0)).prefers_delta
    assert after(*slow, *[("whole", 1.0)] * 3).prefers_delta
