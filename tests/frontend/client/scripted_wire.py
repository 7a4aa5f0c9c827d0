"""A wire without a network: answers a procedure's effects from a script, and records them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from frontend.client.laminar_client import wire
from frontend.client.laminar_client.retrying import Patience, persistent


def reply(status: int = 200, body: bytes = b"{}", **headers: str) -> wire.Reply:
    return wire.Reply(
        status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=body
    )


def problem(status: int, code: str = "refused", **headers: str) -> wire.Reply:
    return reply(status, b'{"code": "%s", "detail": "told so"}' % code.encode(), **headers)


@dataclass
class ScriptedWire:
    """A scripted wire. `answers`: a Reply or Lost for each Send or Open; `chunks`: the chunks of each Open."""

    answers: list[wire.Reply | wire.Lost]
    chunks: list[Sequence[bytes | wire.Lost]] = field(default_factory=list)
    requests: list[wire.Request] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    patience: Patience = field(default_factory=Patience)
    _left: list[bytes | wire.Lost] = field(default_factory=list)

    def run(self, procedure: Any) -> Any:
        course = persistent(procedure, self.patience)
        outcome: Any = None
        try:
            effect = course.send(None)
            while True:
                outcome = self._outcome(effect)
                effect = course.throw(outcome) if isinstance(outcome, wire.Lost) else course.send(outcome)
        except StopIteration as done:
            return done.value

    def _outcome(self, effect: Any) -> Any:
        match effect:
            case wire.Emit(item):
                self.given.append(item)
                return None
            case wire.Pause(seconds):
                self.pauses.append(seconds)
                return None
            case wire.Now():
                return sum(self.pauses)
            case wire.ReadChunk():
                return self._left.pop(0) if self._left else b""
            case wire.Send(request) | wire.Open(request):
                self.requests.append(request)
                answer = self.answers.pop(0)
                if isinstance(effect, wire.Open) and isinstance(answer, wire.Reply) and answer.is_good:
                    self._left = list(self.chunks.pop(0))
                return answer
        pytest.fail(f"unknown effect {effect}")
