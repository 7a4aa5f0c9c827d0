"""Cost of one test: wall and CPU seconds of its process and of the children that it reaped.

Imports and session fixtures are excluded: the first test that needs them would pay for all. A busy machine adds wall
seconds and hardly any CPU seconds, so limits apply to CPU seconds.
"""

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    wall_s: float
    cpu_s: float

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(wall_s=self.wall_s - other.wall_s, cpu_s=self.cpu_s - other.cpu_s)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s)


class Meter:
    """Of the main thread, which runs the tests; another thread's imports count as its test's work."""

    def __init__(self) -> None:
        self._shared = Cost(wall_s=0.0, cpu_s=0.0)
        self._depth = 0
        self._mark = _now()

    def lap(self) -> Cost:
        """Since the last lap, less what was shared."""
        now = _now()
        cost, self._mark = now - self._mark - self._shared, now
        self._shared = Cost(wall_s=0.0, cpu_s=0.0)
        return cost

    @contextlib.contextmanager
    def shared(self) -> Generator[None]:
        """Work inside counts for no test. Nested calls count once."""
        self._depth += 1
        started = _now() if self._depth == 1 else None
        try:
            yield
        finally:
            self._depth -= 1
            if started is not None:
                self._shared += _now() - started

    def exclude_imports(self) -> None:
        """Replaces the function that the interpreter calls for every module that is not loaded yet."""
        bootstrap: Any = importlib._bootstrap  # private
        find_and_load = bootstrap._find_and_load

        def _find_and_load(name: str, import_: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return find_and_load(name, import_)
            with self.shared():
                return find_and_load(name, import_)

        bootstrap._find_and_load = _find_and_load


def _now() -> Cost:
    times = os.times()
    return Cost(wall_s=time.perf_counter(), cpu_s=sum(times[:4]))
