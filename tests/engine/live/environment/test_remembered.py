"""Remembered answers take bounded memory with any environment."""

from collections.abc import Mapping

import pytest

from engine.environments.port import Prompt
from engine.live.environment import remembered
from engine.live.environment.remembered import RememberedAnswers, memory_of
from engine.live.environment.turns import Answer
from engine.pipeline.records import GroupKey, SampleKey


def answer(sample: int, *, text: str = "", facts: Mapping[str, str | int] | None = None) -> Answer:
    key = SampleKey(group=GroupKey(ordinal=0), sample=sample)
    prompt = Prompt(
        split="train", ordinal=0, text=text, facts=facts or {}, messages=({"role": "user", "content": text},)
    )
    return Answer(id=(key, 0, ""), result=prompt)


def test_oldest_answers_leave_once_bytes_or_number_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_ANSWERS", 20)
    monkeypatch.setattr(remembered, "MAX_BYTES", 1 << 20)
    small, large = [answer(at) for at in range(30)], [answer(at, facts={"a": "x" * 200_000}) for at in range(30, 40)]
    known = RememberedAnswers()
    for each in small:
        known.add(each)
    assert [known.get(each.id) for each in small] == [None] * 10 + small[10:]
    for each in large:
        known.add(each)
    assert [known.get(each.id) for each in small + large] == [None] * 35 + large[-5:]
    assert known.num_bytes == sum(memory_of(each.result) for each in large[-5:]) <= 1 << 20


def test_an_answer_larger_than_all_memory_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MAX_BYTES", 1 << 20)
    known, large = RememberedAnswers(), answer(0, text="x" * (2 << 20))
    known.add(large)
    assert known.get(large.id) is None and known.num_bytes == 0


def test_memory_counts_nested_texts_as_python_keeps_them() -> None:
    wide = "\N{GRINNING FACE}" + "x" * 100_000  # four bytes for each character
    assert 400_000 < memory_of(answer(0, facts={"a": wide}).result) < 402_000
    assert 800_000 < memory_of(answer(0, text=wide).result) < 802_000
