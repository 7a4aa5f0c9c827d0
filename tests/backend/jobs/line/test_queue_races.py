"""The race of `tests/bench/races.py`, small: real web, workers, beat, Valkey and Postgres, killed at random."""

import pytest

from tests.bench.races import race


def nothing_is_oversold_lost_or_doubled(*, submissions: int, kill_every_s: float) -> None:
    report = race(submissions=submissions, clients=8, seed=3, kill_every_s=kill_every_s)
    assert report.is_clean, report
    assert (report.oversold, report.lost, report.doubled, report.drift) == (0, 0, 0, [])
    assert sum(report.ended.values()) == report.answered == submissions
    assert 0 < report.worst_held <= 8 and 0 < report.worst_running <= 8, "it was looked at while something ran"
    assert sum(report.kills.values()) >= 1, "somebody was killed"


@pytest.mark.long
def test_submissions_race_while_processes_are_killed_and_nothing_is_oversold_lost_or_doubled() -> None:
    # Whoever was killed starts again for seconds: more of it would make the race longer and not harder.
    nothing_is_oversold_lost_or_doubled(submissions=24, kill_every_s=2.0)


@pytest.mark.soak
def test_many_race_while_somebody_is_always_dead() -> None:
    nothing_is_oversold_lost_or_doubled(submissions=400, kill_every_s=2.0)
