"""Calls that begin at the same moment, each in a thread of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")

START_WITHIN_S = 60.0


def race(*calls: Callable[[], T]) -> list[T]:
    """The calls' results, in their order; the first exception of a call is raised when all have ended."""
    start = Barrier(len(calls), timeout=START_WITHIN_S)

    def begin(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(begin, calls))
