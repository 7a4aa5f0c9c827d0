"""What torch's allocator of host memory has given out, as its profiler reports it, also for operations in C++.

Only of tensors on a CPU, and so of ranks that are real processes here."""

from types import TracebackType
from typing import Any, Self

from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["Allocated", "record_function"]

_MEMORY = "[memory]"


class Allocated:
    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Self:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def peak_in(self, name: str) -> int:
        """Bytes given out since this was entered and not given back, at the fullest moment inside of what
        `record_function` calls so. After the exit."""
        return max(self._levels_in(name))

    def growth_in(self, name: str) -> int:
        """The same, beyond what there was when it began."""
        first, *others = self._levels_in(name)
        return max(others, default=first) - first

    def left_by(self, name: str) -> int:
        """What is there when it ends, beyond what there was when it began."""
        first, *others = self._levels_in(name)
        return [first, *others][-1] - first

    def _levels_in(self, name: str) -> list[int]:
        assert self._profile.profiler is not None and self._profile.profiler.kineto_results is not None
        events: list[Any] = self._profile.profiler.kineto_results.events()
        [span] = [(event.start_ns(), event.end_ns()) for event in events if event.name() == name]
        level, levels = 0, [0]
        for event in sorted((event for event in events if event.name() == _MEMORY), key=lambda event: event.start_ns()):
            level += event.nbytes()
            if event.start_ns() < span[0]:
                levels = [level]
            elif event.start_ns() <= span[1]:
                levels.append(level)
        return levels
