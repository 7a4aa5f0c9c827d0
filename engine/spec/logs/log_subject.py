"""The subject of log lines: the request, job and attempt that they belong to.

    with about(job=job.pk): …       lines of this thread or asyncio task within the block
    this_process_is_about(job=…)    all lines of a process with a single subject, such as a driver

A line whose own message names another job belongs to that job.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

KNOWN: Final = ("request_id", "job", "attempt")
Known = str | int

_always: dict[str, Known] = {}
_now: ContextVar[Mapping[str, Known]] = ContextVar("laminar_log_subject", default=MappingProxyType({}))


@contextmanager
def about(**known: Known) -> Iterator[None]:
    before = _now.set({**_now.get(), **known})
    try:
        yield
    finally:
        _now.reset(before)


def this_process_is_about(**known: Known) -> None:
    _always.update(known)


def current_subject() -> Mapping[str, Known]:
    return {**_always, **_now.get()}
