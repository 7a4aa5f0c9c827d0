"""Who starts now, and why the others wait: properties of the pure decision."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from backend.pools.decide import BACKFILL_PATIENCE, PoolView, QueuedJobView, WaitingReason, decide, in_line

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
TEAMS = ("ants", "bees", "crabs")
MINUTE = timedelta(minutes=1)


def job(name: str, devices: int, *, team: str = "ants", waited: timedelta = timedelta(0)) -> QueuedJobView:
    return QueuedJobView(id=name, team=team, devices=devices, queued_at=NOW - waited)


def pool(*queued: QueuedJobView, capacity: int = 8, used: dict[str, int] | None = None, nominal: int = 8) -> PoolView:
    return PoolView(capacity=capacity, used=used or {}, nominal=dict.fromkeys(TEAMS, nominal), queued=queued, now=NOW)


jobs = st.builds(
    QueuedJobView,
    id=st.uuids().map(str),
    team=st.sampled_from((*TEAMS, "without quota")),
    devices=st.integers(1, 12),
    queued_at=st.integers(0, 60).map(lambda minutes: NOW - minutes * MINUTE),
)
pools = st.builds(
    PoolView,
    capacity=st.integers(0, 12),
    used=st.dictionaries(st.sampled_from(TEAMS), st.integers(0, 6)),
    nominal=st.fixed_dictionaries({team: st.integers(0, 12) for team in TEAMS}),
    queued=st.lists(jobs, max_size=12, unique_by=lambda one: one.id),
    now=st.just(NOW),
)


@given(pools)
def test_nothing_is_ever_oversold(view: PoolView) -> None:
    admitted = [one for one in view.queued if one.id in decide(view).admitted]
    if admitted:
        assert sum(view.used.values()) + sum(one.devices for one in admitted) <= view.capacity
    for team in {one.team for one in admitted}:
        asked = sum(one.devices for one in admitted if one.team == team)
        assert view.used.get(team, 0) + asked <= view.nominal.get(team, 0)


@given(pools)
def test_every_job_is_admitted_or_has_exactly_one_reason(view: PoolView) -> None:
    verdict = decide(view)
    assert len(set(verdict.admitted)) == len(verdict.admitted)
    assert {*verdict.admitted} | {*verdict.reasons} == {one.id for one in view.queued}
    assert not {*verdict.admitted} & {*verdict.reasons}
    assert WaitingReason.NOT_EVALUATED_YET not in verdict.reasons.values()


@given(pools)
def test_the_oldest_that_fits_is_admitted(view: PoolView) -> None:
    for one in in_line(view.queued):
        room = min(view.nominal.get(one.team, 0) - view.used.get(one.team, 0), view.capacity - sum(view.used.values()))
        if one.devices <= room:
            assert one.id in decide(view).admitted
        break


@given(pools)
def test_the_order_in_which_the_line_was_read_does_not_matter(view: PoolView) -> None:
    turned = PoolView(
        capacity=view.capacity, used=view.used, nominal=view.nominal, queued=view.queued[::-1], now=view.now
    )
    assert decide(turned) == decide(view)


def test_each_reason_has_its_case() -> None:
    assert decide(pool(job("a", 9))).reasons == {"a": WaitingReason.EXCEEDS_MAX}
    assert decide(pool(job("a", 1, team="unknown"))).reasons == {"a": WaitingReason.EXCEEDS_MAX}
    assert decide(pool(job("a", 3), used={"bees": 6})).reasons == {"a": WaitingReason.POOL_FULL}
    assert decide(pool(job("a", 3), used={"ants": 2}, nominal=4)).reasons == {"a": WaitingReason.TEAM_CEILING}


def test_small_jobs_fill_the_gap_while_the_big_one_has_not_waited_long() -> None:
    verdict = decide(pool(job("big", 4, waited=MINUTE), job("small", 1), used={"bees": 6}))
    assert verdict.admitted == ("small",) and verdict.reasons == {"big": WaitingReason.POOL_FULL}


def test_the_line_is_held_for_a_big_job_that_has_waited_long() -> None:
    verdict = decide(
        pool(job("big", 4, waited=BACKFILL_PATIENCE), job("small", 1), job("wide", 3, team="crabs"), used={"bees": 6})
    )
    assert verdict.admitted == ()
    assert verdict.reasons == {
        "big": WaitingReason.POOL_FULL,
        "small": WaitingReason.BACKFILL_HOLD,
        "wide": WaitingReason.POOL_FULL,
    }


def test_a_teams_quota_is_held_for_its_own_big_job_and_nobody_elses() -> None:
    big, small = job("big", 4, waited=BACKFILL_PATIENCE), job("small", 1)
    verdict = decide(pool(big, small, job("other", 1, team="bees"), used={"ants": 2}, nominal=4))
    assert verdict.admitted == ("other",)
    assert verdict.reasons == {"big": WaitingReason.TEAM_CEILING, "small": WaitingReason.BEHIND_PRIORITY}


def test_what_can_never_start_holds_up_nobody() -> None:
    assert decide(pool(job("huge", 99, waited=BACKFILL_PATIENCE), job("small", 1))).admitted == ("small",)


@settings(max_examples=60)
@given(
    st.integers(2, 8),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20), st.sampled_from(TEAMS)), min_size=5, max_size=30),
)
def test_a_big_job_starts_however_many_small_ones_keep_coming(
    big: int, arrivals: int, smalls: list[tuple[int, int, str]]
) -> None:
    """A round a minute. The pool is full when the big job comes; small ones (devices, minutes, team) never stop."""
    longest = max(minutes for _, minutes, _ in smalls)
    running = [(longest, "bees", 8)]  # (the minute in which it ends, team, devices)
    queue = [QueuedJobView(id="big", team="ants", devices=big, queued_at=NOW)]
    small_of: dict[str, tuple[int, int, str]] = {}
    for minute in range(2 * longest + int(BACKFILL_PATIENCE / MINUTE) + 1):
        now = NOW + minute * MINUTE
        for n in range(minute * arrivals, (minute + 1) * arrivals):
            devices, _, team = small_of[f"small-{n}"] = smalls[n % len(smalls)]
            queue.append(QueuedJobView(id=f"small-{n}", team=team, devices=devices, queued_at=now))
        running = [one for one in running if one[0] > minute]
        used = {team: sum(devices for _, its, devices in running if its == team) for team in TEAMS}
        verdict = decide(PoolView(capacity=8, used=used, nominal=dict.fromkeys(TEAMS, 8), queued=queue, now=now))
        if "big" in verdict.admitted:
            return
        for devices, minutes, team in (small_of[name] for name in verdict.admitted):
            running.append((minute + minutes, team, devices))
        queue = [one for one in queue if one.id not in verdict.admitted]
    raise AssertionError("the big job starved")
