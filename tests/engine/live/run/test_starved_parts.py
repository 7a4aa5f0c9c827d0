"""The brains are told of silent parts that wait for a core, by this host or by an actor of another one."""

from typing import Any

import pytest

from engine.live.process.core_waits import ProcessNamed, ProcessSeen, process_of
from engine.live.run import starved_parts
from engine.live.run.starved_parts import SILENT_AFTER_S, StarvedParts
from engine.pipeline.messages.addresses import Address, relay_address, rollout_address
from engine.pipeline.messages.to_manager import PartStarved
from engine.thread_times import ThreadTimes
from tests.engine.live.process.starving import SPIN, running, starved, stopped

SILENT, OTHER = rollout_address(0), relay_address(1)
LATER_S = SILENT_AFTER_S + 1.0


def nobody(part: Address) -> Any:
    raise AssertionError(f"{part} is asked")


def listening(process: str, **options: Any) -> StarvedParts:
    """To a part in this process, which was heard at 0."""
    parts = StarvedParts(options.get("actor", nobody))
    parts.hear(SILENT, 0.0)
    parts.introduce(SILENT, 3, ProcessNamed(process=process))
    return parts


def test_starved_process_of_this_host_is_told_of() -> None:
    with running(SPIN) as pid, starved(pid):
        parts = listening(process_of(pid))
        assert list(parts.news(SILENT_AFTER_S)) == [], "it is not silent yet"
        news: list[PartStarved] = []
        for _ in range(1_000_000):
            if sum(each.waited_s for each in news) > 0.2:
                break
            news += parts.news(LATER_S)
    assert {(each.part, each.incarnation) for each in news} == {(SILENT, 3)} and news[-1].waited_s > 0


def test_stopped_process_is_not_told_of() -> None:
    with running(SPIN) as pid, stopped(pid):
        parts = listening(process_of(pid))
        assert [list(parts.news(LATER_S)) for _ in range(50)] == [[]] * 50


def test_part_that_is_heard_or_ended_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starved_parts, "look_at", nobody)
    parts = listening(process_of(1))
    parts.hear(SILENT, LATER_S)
    assert list(parts.news(LATER_S)) == []
    parts.forget(SILENT)
    assert list(parts.news(99.0)) == []


class FarHost:
    """Another machine, and the answers of an actor there: each comes with the next call."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.at = 0.0
        self.look_at = self

    def __call__(self, part: Address) -> "FarHost":
        assert part == OTHER
        return self

    def remote(self, process: str) -> ProcessSeen:
        self.asked.append(process)
        self.at += 1.0
        return ProcessSeen(at=self.at, threads={1: ThreadTimes(state="R", ran_ns=0, waited_ns=0, num_turns=1)})

    def wait(self, answers: list[ProcessSeen], timeout: float) -> tuple[list[ProcessSeen], list[ProcessSeen]]:
        return answers, []

    def get(self, answer: ProcessSeen, timeout: float) -> ProcessSeen:
        return answer


def test_other_host_is_asked_through_an_actor_there(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FarHost()
    monkeypatch.setattr(starved_parts, "ray", host)
    parts = listening("far/7/1", actor=host)
    assert list(parts.news(LATER_S)) == [], "nobody there answers"
    parts.introduce(OTHER, 0, ProcessNamed(process="far/8/1"))
    parts.hear(OTHER, LATER_S)
    told = [[each.waited_s for each in parts.news(LATER_S)] for _ in range(4)]
    assert told == [[], [], [1.0], [1.0]] and set(host.asked) == {"far/7/1"}
    parts.hear(SILENT, LATER_S)
    assert list(parts.news(LATER_S)) == []
