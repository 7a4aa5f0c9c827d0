"""Kinds of a reservation's time: they add up, and each second has the right kind."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.usage.split import AttemptView, Ending, Kinds, Shares, split_by_day

T0 = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def seconds(attempts: list[AttemptView], *, start: float = 0, end: float = 100, devices: int = 1) -> Kinds:
    """Kinds of one reservation, in whole device-seconds."""
    total = sum((kinds for _, kinds in split_by_day(at(start), at(end), devices, attempts)), Kinds())
    return Kinds(**{name: getattr(total, name) // 10**6 for name in Kinds.__slots__})


moments = st.datetimes(
    min_value=datetime(2026, 1, 1), max_value=datetime(2026, 1, 9), timezones=st.just(UTC)
)  # fmt: skip
counts = st.integers(min_value=-3, max_value=1_000)
attempt_views = st.builds(
    AttemptView,
    began_at=moments,
    ready_at=st.none() | moments,
    draining_at=st.none() | moments,
    kept_at=st.none() | moments,
    ended_at=st.none() | moments,
    ending=st.sampled_from(Ending),
    shares=st.builds(Shares, dropped=counts, redone=counts, total=counts),
)


@pytest.mark.long
@settings(max_examples=500)
@given(
    start=moments,
    length_us=st.integers(min_value=0, max_value=4 * 86_400 * 10**6),
    devices=st.integers(min_value=1, max_value=4_096),
    attempts=st.lists(attempt_views, max_size=5).map(lambda views: sorted(views, key=lambda view: view.began_at)),
)
def test_kinds_add_up_to_the_microsecond_for_any_moments(
    start: datetime, length_us: int, devices: int, attempts: list[AttemptView]
) -> None:
    days = split_by_day(start, start + timedelta(microseconds=length_us), devices, attempts)
    assert sum(kinds.held for _, kinds in days) == devices * length_us
    for day, kinds in days:
        assert min(kinds.startup, kinds.useful, kinds.stale, kinds.fault, kinds.idle, kinds.credited) >= 0
        assert kinds.credited <= kinds.fault
        assert kinds.held <= devices * 86_400 * 10**6, "a day is no longer"
        assert start.date() <= day <= (start + timedelta(microseconds=length_us)).date()


def test_time_is_startup_until_ready_then_useful() -> None:
    kinds = seconds([AttemptView(began_at=at(0), ready_at=at(30), ended_at=at(100))], devices=3)
    assert kinds == Kinds(startup=90, useful=210)


def test_time_after_last_checkpoint_is_lost_and_credited() -> None:
    lost = AttemptView(
        began_at=at(0), ready_at=at(10), kept_at=at(40), ended_at=at(60), ending=Ending.PLATFORM_FAULT
    )  # fmt: skip
    second = AttemptView(began_at=at(65), ready_at=at(75), ended_at=at(100))
    assert seconds([lost, second]) == Kinds(startup=10, useful=30 + 25, fault=20 + 5 + 10, credited=35)


def test_attempt_without_checkpoint_is_lost_as_a_whole() -> None:
    lost = AttemptView(began_at=at(0), ready_at=at(10), ended_at=at(100), ending=Ending.PLATFORM_FAULT)
    assert seconds([lost]) == Kinds(fault=100, credited=100)


def test_own_fault_is_not_credited() -> None:
    failed = AttemptView(began_at=at(0), ready_at=at(10), kept_at=at(50), ended_at=at(100), ending=Ending.OWN_FAULT)
    assert seconds([failed]) == Kinds(startup=10, useful=40, fault=50)


def test_pausing_until_release_is_idle() -> None:
    paused = AttemptView(began_at=at(0), ready_at=at(10), draining_at=at(70), kept_at=at(80), ended_at=at(90))
    assert seconds([paused]) == Kinds(startup=10, useful=60, idle=30)


def test_dropped_and_redone_samples_reduce_useful_time() -> None:
    view = AttemptView(began_at=at(0), ready_at=at(0), shares=Shares(dropped=10, redone=20, total=100))
    assert seconds([view]) == Kinds(useful=70, stale=10, fault=20), "shares that the engine reports are not credited"


def test_late_replica_has_no_startup() -> None:
    view = AttemptView(began_at=at(0), ready_at=at(10))
    assert seconds([view], start=50) == Kinds(useful=50)


def test_day_ends_at_midnight_utc() -> None:
    start = datetime(2026, 1, 5, 23, 59, 50, tzinfo=UTC)
    days = split_by_day(start, start + timedelta(seconds=30), 2, [AttemptView(began_at=start, ready_at=start)])
    assert days == [
        (date(2026, 1, 5), Kinds(useful=20 * 10**6)),
        (date(2026, 1, 6), Kinds(useful=40 * 10**6)),
    ]


def test_nothing_held_is_still_a_day() -> None:
    assert split_by_day(T0, T0, 2, []) == [(date(2026, 1, 5), Kinds())]


def test_short_day_and_other_zone_bill_the_held_time() -> None:
    berlin = ZoneInfo("Europe/Berlin")  # on 29 March 2026 it has no hour after two
    start, end = datetime(2026, 3, 28, 23, 30, tzinfo=berlin), datetime(2026, 3, 30, 0, 30, tzinfo=berlin)
    days = split_by_day(start, end, 1, [])
    assert days == split_by_day(start.astimezone(UTC), end.astimezone(UTC), 1, [])
    assert [(day, kinds.held // (3_600 * 10**6)) for day, kinds in days] == [
        (date(2026, 3, 28), 1),
        (date(2026, 3, 29), 22),
    ]
    assert sum(kinds.held for _, kinds in days) == 24 * 3_600 * 10**6


def test_clock_set_back_bills_zero() -> None:
    assert [kinds for _, kinds in split_by_day(at(3_600), at(0), 8, [])] == [Kinds()]
