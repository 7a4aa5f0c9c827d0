"""The port of every sink of facts."""

from typing import Protocol

from engine.spec.facts import FactBody


class EventSink(Protocol):
    def record(self, body: FactBody) -> None:
        """The fact is durable when this returns, and delivered later. Never blocks on the network."""

    def close(self, timeout_s: float) -> bool:
        """True if every recorded fact was delivered."""
