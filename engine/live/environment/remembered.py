"""The latest answers of an environment, for requests that come again after a move or a lost message.

Invariant: they take at most MAX_BYTES with any environment; an evicted one is computed again.
"""

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from engine.environments.port import Observation, Prompt, Verdict
from engine.live.environment.turns import Answer, AskId
from engine.pipeline.records import Failure

MAX_ANSWERS: Final = 4_096
MAX_BYTES: Final = 256 << 20  # a fifteenth of a megabyte for each of the most answers


class RememberedAnswers:
    """Not for several threads at once."""

    def __init__(self) -> None:
        self._answers: OrderedDict[AskId, tuple[Answer, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, id: AskId) -> Answer | None:
        answer, _ = self._answers.get(id, (None, 0))
        return answer

    def add(self, answer: Answer) -> None:
        num_bytes = memory_of(answer.result)
        self._answers[answer.id] = answer, num_bytes
        self.num_bytes += num_bytes
        while len(self._answers) > MAX_ANSWERS or self.num_bytes > MAX_BYTES:
            _, (_, evicted) = self._answers.popitem(last=False)
            self.num_bytes -= evicted


def memory_of(value: object) -> int:
    """Bytes in memory of a turn's result, with all that is nested in it."""
    match value:
        case Mapping():
            return sys.getsizeof(value) + sum(memory_of(name) + memory_of(each) for name, each in value.items())
        case list() | tuple():
            return sys.getsizeof(value) + sum(map(memory_of, value))
        case Prompt() | Observation() | Verdict() | Failure():
            return sum(memory_of(getattr(value, each.name)) for each in fields(value))
    return sys.getsizeof(value)
