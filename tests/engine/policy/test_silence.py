"""Silence counts the seconds in which a process could have spoken."""

from engine.policy.silence import Silence


def test_wait_for_a_core_is_no_silence() -> None:
    silence = Silence(10.0)
    assert silence.lasts_s(13.0) == 3.0
    silence.waited_s += 20.0
    assert silence.lasts_s(33.0) == 3.0
    assert silence.lasts_s(35.0) == 5.0, "it runs again, and says nothing"
    silence.end(36.0)
    assert silence.lasts_s(37.0) == 1.0


def test_silence_is_never_negative() -> None:
    silence = Silence(10.0)
    silence.waited_s += 5.0
    assert silence.lasts_s(12.0) == 0.0
