"""A process that waits for a core differs, in its host's statistics, from one that is stopped, asleep or gone."""

import os
import time
from collections.abc import Iterator

import pytest

from engine.live.process import core_waits
from engine.live.process.core_waits import (
    Looks,
    ProcessTimes,
    look_at,
    own_process,
    process_of,
    thread_waited_s,
    waited_between_s,
)
from engine.process import thread_times
from engine.process.thread_times import ThreadTimes
from tests.engine.live.process.starving import SLEEP, SPIN, running, starved, stopped

APART_S = 0.2


def thread(state: str, *, ran_s: float = 0.0, waited_s: float = 0.0, num_turns: int = 0) -> ThreadTimes:
    return ThreadTimes(state=state, ran_ns=int(ran_s * 1e9), waited_ns=int(waited_s * 1e9), num_turns=num_turns)


def between(before: ThreadTimes, after: ThreadTimes, *, lasts_s: float = 10.0) -> float:
    return waited_between_s(ProcessTimes(at=0.0, threads={1: before}), ProcessTimes(at=lasts_s, threads={1: after}))


@pytest.mark.parametrize(
    ("before", "after", "waited_s"),
    [
        (thread("R", num_turns=7), thread("R", num_turns=7), 10.0),
        (thread("R"), thread("R", waited_s=9.5, ran_s=0.5, num_turns=1), 9.5),
        (thread("S"), thread("S", waited_s=9.0, ran_s=0.5, num_turns=3), 9.0),
        (thread("R"), thread("R", ran_s=10.0), 0.0),
        (thread("T"), thread("T"), 0.0),
        (thread("S"), thread("S"), 0.0),
        (thread("D"), thread("D"), 0.0),
        (thread("R"), thread("R", waited_s=99.0, num_turns=1), 10.0),
    ],
    ids=[
        "queued",
        "had turns",
        "slept between",
        "had the core",
        "stopped",
        "asleep",
        "on a disk",
        "no longer than time",
    ],
)
def test_wait_between_two_looks(before: ThreadTimes, after: ThreadTimes, waited_s: float) -> None:
    assert between(before, after) == pytest.approx(waited_s)


def test_longest_thread_wait_is_the_wait_of_the_process() -> None:
    asleep, queued = thread("S"), thread("R")
    before = ProcessTimes(at=0.0, threads={1: asleep, 2: queued, 3: asleep})
    after = ProcessTimes(at=4.0, threads={1: asleep, 2: queued, 9: queued})
    assert waited_between_s(before, after) == 4.0


def waited_share(pid: int) -> float:
    """The share of the time between two looks that the process waited."""
    process = process_of(pid)
    before = look_at(process)
    time.sleep(APART_S)
    after = look_at(process)
    assert before is not None and after is not None
    return waited_between_s(before, after) / (after.at - before.at)


def shares(pid: int) -> Iterator[float]:
    for _ in range(50):
        yield waited_share(pid)


def test_starved_process_waits() -> None:
    with running(SPIN) as pid, starved(pid):
        assert any(share > 0.5 for share in shares(pid))


@pytest.mark.parametrize("program", [SPIN, SLEEP])
def test_stopped_process_waits_for_nothing(program: str) -> None:
    with running(program) as pid, stopped(pid):
        assert waited_share(pid) == 0.0


def test_stopped_process_waits_for_nothing_on_a_starved_host() -> None:
    with running(SPIN) as pid, stopped(pid), starved(pid):
        assert waited_share(pid) == 0.0


def test_process_that_is_gone_is_not_seen() -> None:
    with running(SLEEP) as pid:
        process = process_of(pid)
        assert look_at(process) is not None
    assert look_at(process) is None


def test_reused_pid_is_another_process() -> None:
    home, pid, _ = own_process().rsplit("/", 2)
    assert look_at(own_process()) is not None
    assert look_at(f"{home}/{pid}/1") is None and look_at(f"elsewhere/{pid}/1") is None and look_at("") is None


def test_host_without_statistics_reports_no_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for reader in (core_waits, thread_times):
        monkeypatch.setattr(reader, "PROC", tmp_path)
    assert process_of(os.getpid()) == "" and thread_waited_s(1) == 0.0


def test_first_look_reports_no_wait() -> None:
    looks, queued = Looks(), {1: thread("R")}
    assert looks.waited_s("part", ProcessTimes(at=0.0, threads=queued)) == 0.0
    assert looks.waited_s("part", ProcessTimes(at=1.0, threads=queued)) == 1.0
    assert looks.waited_s("part", None) == 0.0
    assert looks.waited_s("part", ProcessTimes(at=9.0, threads=queued)) == 0.0, "sampling starts over"
    looks.keep_only(lambda part: False)
    assert looks.waited_s("part", ProcessTimes(at=10.0, threads=queued)) == 0.0
