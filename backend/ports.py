"""Ports: calls of an app into one that stands above it, which it must not import.

    the lower app, at its door    last_words: Port[LastWords] = Port("the last lines of an attempt")
    the upper app, when it loads  last_words.fill(read_last_words)      in AppConfig.ready()
    whoever needs it              last_words()(job, attempt)

Invariants:
- a port is filled once, by one app; whoever asks one that is not filled gets `UnfilledPort`, never a silent default;
- the web process starts with every port filled, or not at all.
"""

from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
_declared: Final[list["Port[Any]"]] = []


class UnfilledPort(RuntimeError):
    """An app that this site needs is not loaded."""


class Port(Generic[T]):
    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._filled_with: T | None = None
        _declared.append(self)

    def fill(self, filling: T) -> None:
        assert self._filled_with is None, f"two apps offer {self._purpose}"
        self._filled_with = filling

    @property
    def is_filled(self) -> bool:
        return self._filled_with is not None

    def __call__(self) -> T:
        if self._filled_with is None:
            raise UnfilledPort(f"no app that is loaded offers {self._purpose}")
        return self._filled_with

    def __str__(self) -> str:
        return self._purpose


def refuse_unfilled() -> None:
    """Raises `UnfilledPort`. When all apps are loaded."""
    missing = ", ".join(str(port) for port in _declared if not port.is_filled)
    if missing:
        raise UnfilledPort(f"no app that is loaded offers {missing}")
