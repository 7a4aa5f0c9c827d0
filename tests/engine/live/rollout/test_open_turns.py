"""A replica's requests to its environment: batched, and repeated until answered."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from engine.live.environment.turns import Ask
from engine.live.rollout.open_turns import GATHER_S, GRACE_S, OpenTurns
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.records import GroupKey, SampleKey


class Clocked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[list[int]] = []
        """The ordinals that each call requested."""
        monkeypatch.setattr("engine.live.rollout.open_turns.time", SimpleNamespace(monotonic=lambda: self.now))
        self.open_turns = OpenTurns(by=rollout_address(0), ask=self._record, timeout_s=1.0)

    def _record(self, asks: object) -> None:
        assert isinstance(asks, list) and all(isinstance(ask, Ask) for ask in asks)
        self.calls.append([ask.key.group.ordinal for ask in asks])

    def ask(self, ordinal: int, *, at_once: bool = False) -> SampleKey:
        key = SampleKey(group=GroupKey(ordinal=ordinal), sample=0)
        self.open_turns.prompts([key])
        self.open_turns.send(at_once=at_once)
        return key

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.open_turns.send(at_once=False)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocked]:
    yield Clocked(monkeypatch)


def test_first_ask_goes_at_once_and_close_ones_are_batched(clocked: Clocked) -> None:
    for ordinal in range(3):
        clocked.ask(ordinal)
        clocked.later(GATHER_S / 4)
    assert clocked.calls == [[0]]
    clocked.later(GATHER_S / 2)
    assert clocked.calls == [[0], [1, 2]]


def test_ask_goes_at_once_where_nothing_decodes(clocked: Clocked) -> None:
    clocked.ask(0)
    clocked.ask(1, at_once=True)
    assert clocked.calls == [[0], [1]]


def test_ask_forgotten_before_it_is_sent_is_not_sent(clocked: Clocked) -> None:
    clocked.ask(0)
    clocked.open_turns.forget_prompts({clocked.ask(1)})
    clocked.later(GATHER_S)
    assert clocked.calls == [[0]]


def test_unanswered_ask_is_resent_once_per_timeout(clocked: Clocked) -> None:
    clocked.ask(0)
    for _ in range(2):
        clocked.now += 1.5 + GRACE_S
        clocked.open_turns.again(lost_only=True)
        clocked.later(0.0)
        clocked.open_turns.again(lost_only=True)
        clocked.later(GATHER_S)
    assert clocked.calls == [[0]] * 3
