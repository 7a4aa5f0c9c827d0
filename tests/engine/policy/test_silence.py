"""Silence counts the seconds in which a process could have sent a heartbeat."""

from engine.policy.silence import Silence


def test_wait_for_a_core_is_no_silence() -> None:
    silence = Silence(10.0)
    assert silence.lasts_s(13.0) == 3.0
    silence.excuse(20.0, 33.0)
    assert silence.lasts_s(33.0) == 3.0
    assert silence.lasts_s(35.0) == 5.0, "running again, without a heartbeat"
    silence.end(36.0)
    assert silence.lasts_s(37.0) == 1.0


def test_wait_excuses_no_silence_to_come() -> None:
    silence = Silence(10.0)
    silence.excuse(500.0, 12.0)
    assert silence.lasts_s(12.0) == 0.0 and silence.lasts_s(15.0) == 3.0
