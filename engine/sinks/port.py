"""The port of every sink of facts."""

from typing import Protocol

from engine.spec.facts import FactBody


class EventSink(Protocol):
    def record(self, body: FactBody) -> None:
        """Durable when it returns, delivered some time later. Never blocks on the network."""

    def close(self, timeout_s: float) -> bool:
        """True when everything recorded was delivered."""
