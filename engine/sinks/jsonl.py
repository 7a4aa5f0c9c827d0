"""Facts in a file, for a run without a control plane: the user keeps the file, so it is never truncated."""

from collections.abc import Callable
from pathlib import Path

from engine.sinks.segments import SegmentWriter
from engine.spec.facts import Fact, FactBody


class JsonlSink:
    def __init__(self, path: Path, *, on_fact: Callable[[Fact], None] = lambda fact: None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = SegmentWriter(path, first_seq=1)
        self._on_fact = on_fact

    def record(self, body: FactBody) -> None:
        self._on_fact(self._file.append(body))

    def close(self, timeout_s: float) -> bool:
        self._file.close()
        return True
