"""Requests (`Ask`) of one replica to its environment that are not answered yet.

Invariants:
- a sample waits for its prompt or for the answer to its turns, never for both;
- requests close in time go out as one batch: with short turns, a call costs more than its content;
- after a timeout the request is sent again; a duplicate answer is dropped;
- the answer to a forgotten request (its sample stopped, or moved to another replica) is dropped.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from engine.live.environment.turns import Answer, Ask, AskId
from engine.live.rollout.conversation import Conversation
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import GroupKey, SampleKey

# The environment always answers within its timeout; after that and this grace, the request or the answer was lost.
GRACE_S: Final = 5.0
# While other samples decode, a request waits this long for its batch; so short a delay of a place costs nothing.
GATHER_S: Final = 0.02


class OpenTurns:
    def __init__(self, *, by: Address, ask: Callable[[Sequence[Ask]], None], timeout_s: float) -> None:
        self._by, self._ask, self._patience_s = by, ask, timeout_s + GRACE_S
        self._unanswered: dict[AskId, tuple[Ask, float]] = {}
        self._unsent: dict[AskId, None] = {}
        self._sent_at = float("-inf")
        self._prompts: dict[AskId, set[SampleKey]] = {}
        self._turns: dict[AskId, Conversation] = {}

    @property
    def num_open(self) -> int:
        return len(self._unanswered)

    @property
    def num_samples(self) -> int:
        return len(self._turns) + sum(map(len, self._prompts.values()))

    def prompts(self, keys: Sequence[SampleKey]) -> None:
        """Requests one prompt for all samples of a group."""
        by_group: dict[GroupKey, set[SampleKey]] = {}
        for key in keys:
            by_group.setdefault(key.group, set()).add(key)
        asks = []
        for group, samples in by_group.items():
            ask = Ask(by=self._by, key=SampleKey(group=group, sample=0), prompt=None, turns=())
            self._prompts.setdefault(ask.id, set()).update(samples)
            asks.append(ask)
        self._keep(asks)

    def turns(self, conversations: Sequence[Conversation]) -> None:
        asks = []
        for each in conversations:
            turns, truncated = tuple(each.turns), each.is_truncated
            ask = Ask(by=self._by, key=each.key, prompt=each.prompt, turns=turns, is_truncated=truncated)
            self._turns[ask.id] = each
            asks.append(ask)
        self._keep(asks)

    def again(self, *, lost_only: bool) -> None:
        now = time.monotonic()
        self._keep([ask for ask, at in self._unanswered.values() if not lost_only or now - at > self._patience_s])

    def send(self, *, at_once: bool) -> None:
        """Sends the gathered requests if they are due."""
        now = time.monotonic()
        if not self._unsent or (now - self._sent_at < GATHER_S and not at_once):
            return
        asks = [self._unanswered[id][0] for id in self._unsent if id in self._unanswered]  # the others were forgotten
        self._unsent, self._sent_at = {}, now
        if asks:
            self._ask(asks)

    def awaited_prompt(self, answer: Answer) -> set[SampleKey]:
        keys = self._prompts.pop(answer.id, set())
        if keys:
            del self._unanswered[answer.id]
        return keys

    def awaited_turn(self, answer: Answer) -> Conversation | None:
        conversation = self._turns.pop(answer.id, None)
        if conversation is not None:
            del self._unanswered[answer.id]
        return conversation

    def open_turns(self, keys: set[SampleKey]) -> list[Conversation]:
        return [each for each in self._turns.values() if each.key in keys]

    def conversations(self) -> list[Conversation]:
        return list(self._turns.values())

    def forget_turns(self, keys: set[SampleKey]) -> list[Conversation]:
        gone = [id for id, each in self._turns.items() if each.key in keys]
        for id in gone:
            del self._unanswered[id]
        return [self._turns.pop(id) for id in gone]

    def forget_prompts(self, keys: set[SampleKey]) -> list[SampleKey]:
        forgotten: list[SampleKey] = []
        for id, waiting in list(self._prompts.items()):
            forgotten += sorted(waiting & keys, key=lambda key: key.sample)
            waiting -= keys
            if not waiting:
                del self._prompts[id], self._unanswered[id]
        return forgotten

    def _keep(self, asks: Iterable[Ask]) -> None:
        now = time.monotonic()
        for ask in asks:
            id = ask.id
            self._unanswered[id], self._unsent[id] = (ask, now), None
