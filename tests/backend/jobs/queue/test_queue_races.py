"""The race of `tests/bench/site/races.py`, small: real web, workers, beat, Valkey and Postgres, killed at random."""

import pytest

from tests.bench.site.races import race


def nothing_is_oversold_lost_or_doubled(*, submissions: int, kill_every_s: float) -> None:
    report = race(submissions=submissions, clients=8, seed=3, kill_every_s=kill_every_s)
    assert report.is_clean, report
    assert (report.oversold, report.lost, report.doubled, report.drift) == (0, 0, 0, [])
    assert sum(report.ended.values()) == report.answered == submissions
    assert 0 < report.worst_held <= 8 and 0 < report.worst_running <= 8, "the watcher sampled while jobs ran"
    assert sum(report.kills.values()) >= 1, "at least one process was killed"


@pytest.mark.long
def test_race_with_kills_oversells_loses_doubles_nothing() -> None:
    # A killed process takes seconds to restart: more kills would make the race longer, not harder.
    nothing_is_oversold_lost_or_doubled(submissions=24, kill_every_s=2.0)


@pytest.mark.soak
def test_large_race_with_a_process_always_down() -> None:
    nothing_is_oversold_lost_or_doubled(submissions=400, kill_every_s=2.0)
