"""The race of `tests/bench/races.py`, small: real web, workers, beat, Valkey and Postgres, killed at random."""

from tests.bench.races import race


def test_forty_submissions_race_while_processes_are_killed_and_nothing_is_oversold_lost_or_doubled() -> None:
    report = race(submissions=40, clients=8, seed=3, kill_every_s=2.0)
    assert report.is_clean, report
    assert (report.oversold, report.lost, report.doubled, report.drift) == (0, 0, 0, [])
    assert sum(report.ended.values()) == report.answered == 40
    assert 0 < report.worst_held <= 8 and 0 < report.worst_running <= 8, "it was looked at while something ran"
    assert sum(report.kills.values()) >= 2, "somebody was killed"
