"""Facts in a file, for a run without a control plane."""

from collections.abc import Callable
from pathlib import Path

from engine.sinks.spool import Spool
from engine.spec.facts import Fact, FactBody


class JsonlSink:
    def __init__(self, path: Path, *, on_fact: Callable[[Fact], None] = lambda fact: None) -> None:
        self._spool = Spool(path)
        self._on_fact = on_fact

    def record(self, body: FactBody) -> None:
        self._on_fact(self._spool.append(body))

    def close(self, timeout_s: float) -> bool:
        self._spool.close()
        return True
