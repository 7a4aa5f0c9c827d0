"""Awake time is the clock less the time that its reader slept through."""

import pytest

from engine.policy.awake import AwakeTime
from engine.policy.recovery import ABSENT_AFTER_S


def test_awake_time_without_sleep_is_the_clock() -> None:
    awake = AwakeTime(100.0)
    assert [awake.at(100.0 + tick) for tick in range(50)] == [100.0 + tick for tick in range(50)]


@pytest.mark.parametrize("slept_s", [ABSENT_AFTER_S + 0.1, 450.0, 1e6])
def test_deadlines_are_as_far_away_after_sleep(slept_s: float) -> None:
    awake = AwakeTime(100.0)
    deadline = awake.at(101.0) + 20.0
    assert deadline - awake.at(101.0 + slept_s) == pytest.approx(20.0)
    assert deadline - awake.at(104.0 + slept_s) == pytest.approx(17.0)


def test_awake_time_never_goes_back_and_skips_every_sleep() -> None:
    awake = AwakeTime(0.0)
    read = [awake.at(now) for now in (1.0, 50.0, 51.0, 99.0, 100.0)]
    assert read == sorted(read) and read[-1] == pytest.approx(3.0)


def test_first_read_counts_no_sleep() -> None:
    assert AwakeTime().at(12_345.0) == 12_345.0
