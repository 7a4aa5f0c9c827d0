"""The spool: on disk when it says so, whole after a crash, small in memory."""

import json
from pathlib import Path

import pytest

from engine.sinks.jsonl import JsonlSink
from engine.sinks.spool import Spool
from engine.spec.facts import Fact, PhaseChanged, StepTrained

BODY = PhaseChanged(phase="training")


def step(number: int) -> StepTrained:
    return StepTrained(step=number, metrics={"reward/mean": 0.5})


def seqs(lines: list[bytes]) -> list[int]:
    return [json.loads(line)["seq"] for line in lines]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempt" / "facts.jsonl"


def test_facts_are_numbered_from_one_and_are_readable_as_facts(path: Path) -> None:
    spool = Spool(path)
    assert [spool.append(step(number)).seq for number in (1, 2, 3)] == [1, 2, 3]
    lines = spool.lines_after(1, max_facts=10, max_bytes=10_000)
    assert [Fact.model_validate_json(line).seq for line in lines] == [2, 3]


def test_a_fact_is_in_the_file_when_append_returns(path: Path) -> None:
    Spool(path).append(BODY)
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("num_cut", [1, 5, 60])
def test_a_line_torn_by_a_crash_is_cut_off_and_its_number_given_again(path: Path, num_cut: int) -> None:
    spool = Spool(path)
    spool.append(BODY)
    spool.append(BODY)
    spool.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-num_cut])
    reopened = Spool(path)
    assert reopened.last_seq == 1
    assert reopened.append(BODY).seq == 2
    assert seqs(reopened.lines_after(0, max_facts=10, max_bytes=10_000)) == [1, 2]


def test_a_batch_is_bounded_by_number_and_bytes_but_never_empty(path: Path) -> None:
    spool = Spool(path)
    for number in range(1, 11):
        spool.append(step(number))
    assert seqs(spool.lines_after(0, max_facts=3, max_bytes=10_000)) == [1, 2, 3]
    assert seqs(spool.lines_after(3, max_facts=10, max_bytes=1)) == [4]
    assert seqs(spool.lines_after(9, max_facts=10, max_bytes=10_000)) == [10]
    assert spool.lines_after(10, max_facts=10, max_bytes=10_000) == []


def test_reading_may_go_back(path: Path) -> None:
    spool = Spool(path)
    for number in range(1, 6):
        spool.append(step(number))
    assert seqs(spool.lines_after(4, max_facts=10, max_bytes=10_000)) == [5]
    assert seqs(spool.lines_after(1, max_facts=10, max_bytes=10_000)) == [2, 3, 4, 5]


def test_the_file_sink_shows_each_fact(path: Path) -> None:
    shown: list[Fact] = []
    sink = JsonlSink(path, on_fact=shown.append)
    sink.record(BODY)
    assert sink.close(timeout_s=0)
    assert [fact.seq for fact in shown] == [1]
