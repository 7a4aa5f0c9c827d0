"""Ports: calls of an app into one above it, which it must not import.

    the lower app declares it     last_words: Port[LastWords] = Port("the last lines of an attempt")
    the upper app fills it        last_words.fill(read_last_lines)      in AppConfig.ready()
    callers use it                last_words()(job, attempt)

Invariants:
- a port is filled once, by one app; calling an unfilled port raises `UnfilledPort`, never uses a silent default;
- the web process starts only if every port is filled.
"""

from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
_declared: Final[list["Port[Any]"]] = []


class UnfilledPort(RuntimeError):
    """A required app is not loaded."""


class Port(Generic[T]):
    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._filled_with: T | None = None
        _declared.append(self)

    def fill(self, filling: T) -> None:
        assert self._filled_with is None, f"two apps provide {self._purpose}"
        self._filled_with = filling

    @property
    def is_filled(self) -> bool:
        return self._filled_with is not None

    def __call__(self) -> T:
        if self._filled_with is None:
            raise UnfilledPort(f"no loaded app provides {self._purpose}")
        return self._filled_with

    def __str__(self) -> str:
        return self._purpose


def refuse_unfilled() -> None:
    """Raises `UnfilledPort`. Call it once all apps are loaded."""
    missing = ", ".join(str(port) for port in _declared if not port.is_filled)
    if missing:
        raise UnfilledPort(f"no loaded app provides {missing}")
