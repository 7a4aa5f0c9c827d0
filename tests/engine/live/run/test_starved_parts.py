"""Silent parts that wait for a core are reported, from this host or by an actor of another one."""

from typing import Any

import pytest

from engine.live.process.core_waits import ProcessNamed, ProcessTimes, process_of
from engine.live.run import starved_parts
from engine.live.run.starved_parts import SILENT_AFTER_S, StarvedParts
from engine.pipeline.messages.addresses import Address, relay_address, rollout_address
from engine.pipeline.messages.to_manager import PartStarved
from engine.process.thread_times import ThreadTimes
from tests.engine.live.process.starving import SPIN, running, starved, stopped

SILENT, OTHER = rollout_address(0), relay_address(1)
LATER_S = SILENT_AFTER_S + 1.0


def no_actor(part: Address) -> Any:
    raise AssertionError(f"{part} was called")


def listening(process: str, **options: Any) -> StarvedParts:
    """Watches a part of this process that answered last at 0."""
    parts = StarvedParts(options.get("actor", no_actor))
    parts.note_answer(SILENT, 0.0)
    parts.introduce(SILENT, 3, ProcessNamed(process=process))
    return parts


def test_starved_process_of_this_host_is_reported() -> None:
    with running(SPIN) as pid, starved(pid):
        parts = listening(process_of(pid))
        assert list(parts.news(SILENT_AFTER_S)) == [], "the part is not silent yet"
        news: list[PartStarved] = []
        for _ in range(1_000_000):
            if sum(each.waited_s for each in news) > 0.2:
                break
            news += parts.news(LATER_S)
    assert {(each.part, each.incarnation) for each in news} == {(SILENT, 3)} and news[-1].waited_s > 0


def test_stopped_process_is_not_reported() -> None:
    with running(SPIN) as pid, stopped(pid):
        parts = listening(process_of(pid))
        assert [list(parts.news(LATER_S)) for _ in range(50)] == [[]] * 50


def test_part_that_answers_or_ended_is_not_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starved_parts, "look_at", no_actor)
    parts = listening(process_of(1))
    parts.note_answer(SILENT, LATER_S)
    assert list(parts.news(LATER_S)) == []
    parts.forget(SILENT)
    assert list(parts.news(99.0)) == []


class FarHost:
    """Another machine, with an actor whose answers arrive at the next call."""

    def __init__(self) -> None:
        self.inspected: list[str] = []
        self.at = 0.0
        self.look_at = self

    def __call__(self, part: Address) -> "FarHost":
        assert part == OTHER
        return self

    def remote(self, process: str) -> ProcessTimes:
        self.inspected.append(process)
        self.at += 1.0
        return ProcessTimes(at=self.at, threads={1: ThreadTimes(state="R", ran_ns=0, waited_ns=0, num_turns=1)})

    def wait(self, answers: list[ProcessTimes], timeout: float) -> tuple[list[ProcessTimes], list[ProcessTimes]]:
        return answers, []

    def get(self, answer: ProcessTimes, timeout: float) -> ProcessTimes:
        return answer


def test_other_host_is_inspected_by_an_actor_there(monkeypatch: pytest.MonkeyPatch) -> None:
    host = FarHost()
    monkeypatch.setattr(starved_parts, "ray", host)
    parts = listening("far/7/1", actor=host)
    assert list(parts.news(LATER_S)) == [], "no actor there answers"
    parts.introduce(OTHER, 0, ProcessNamed(process="far/8/1"))
    parts.note_answer(OTHER, LATER_S)
    waits = [[each.waited_s for each in parts.news(LATER_S)] for _ in range(4)]
    assert waits == [[], [], [1.0], [1.0]] and set(host.inspected) == {"far/7/1"}
    parts.note_answer(SILENT, LATER_S)
    assert list(parts.news(LATER_S)) == []
