"""Ctrl-C ends the looking, whatever Python does with the exception."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from frontend.client.laminar_client.cli.interrupts import Interrupts


def looks() -> Iterator[int]:
    """Of which the second meets a Ctrl-C where Python forgets exceptions."""
    yield 1
    pressed = Pressing()
    del pressed
    yield 2
    yield 3


class Pressing:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10):  # the handler runs between two of these
            pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # that is the case in question
def test_one_that_python_forgets_is_heeded_at_the_next_look() -> None:
    interrupts, seen = Interrupts(), list[int]()
    with handler(signal.default_int_handler), interrupts.noted(), pytest.raises(KeyboardInterrupt):
        for look in interrupts.heed(looks()):
            seen.append(look)
    assert seen == [1]


def test_whoever_has_a_handler_of_their_own_keeps_it() -> None:
    def own(*_: object) -> None: ...

    with handler(own), Interrupts().noted():
        assert signal.getsignal(signal.SIGINT) is own


@contextmanager
def handler(chosen: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, chosen)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
