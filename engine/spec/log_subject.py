"""What log lines are about, beside what they say: the request, the job, its attempt.

    with about(job=job.pk): …       as far as this thread's or task's work goes
    this_process_is_about(job=…)    the whole of a process that has one subject, such as a driver

A line that names another job in its own words is about that one.
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


def told_of() -> Mapping[str, Known]:
    return {**_always, **_now.get()}
