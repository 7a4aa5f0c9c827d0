"""Checks on the hosts of silent parts whether the part's process waits for a core.

    a part answers no poll ──SILENT_AFTER_S──▶ its host inspects its process, every second
                                                ├─▶ runnable, no core: the brains get the time of that wait
                                                └─▶ stopped, asleep, gone, no answer: nothing, and its silence counts

Invariants:
- a process on this host is read directly, on any other host through an actor there that still answers;
- a call to another host never blocks the supervisor.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.live.process.core_waits import Looks, ProcessNamed, ProcessTimes, home, home_of, look_at
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_manager import PartStarved

log = logging.getLogger(__name__)

SILENT_AFTER_S: Final = 3.0  # three unanswered polls


class StarvedParts:
    def __init__(self, actor: Callable[[Address], Any]) -> None:
        self._actor = actor
        self._processes: dict[Address, str] = {}
        self._incarnations: dict[Address, int] = {}
        self._answered_at: dict[Address, float] = {}
        self._calls: dict[Address, tuple[Address, Any]] = {}
        """Silent part → the part that inspects it, and the pending answer."""
        self._looks = Looks()

    def introduce(self, part: Address, incarnation: int, named: ProcessNamed) -> None:
        self._processes[part], self._incarnations[part] = named.process, incarnation

    def note_answer(self, part: Address, now: float) -> None:
        self._answered_at[part] = now

    def forget(self, part: Address) -> None:
        """Called when the part's process was ended."""
        self._processes.pop(part, None)
        self._answered_at.pop(part, None)
        self._calls.pop(part, None)

    def news(self, now: float) -> Iterator[PartStarved]:
        """Yields silent parts that have waited for a core since the last call."""
        silent = [part for part in self._processes if self._is_silent(part, now)]
        self._looks.keep_only(lambda part: part in silent)
        for part in silent:
            is_here = home_of(self._processes[part]) == home()
            answers = [look_at(self._processes[part])] if is_here else self._answers(part, now)
            for seen in answers:
                waited_s = self._looks.waited_s(part, seen)
                if waited_s > 0:
                    yield PartStarved(part=part, incarnation=self._incarnations[part], waited_s=waited_s)

    def _is_silent(self, part: Address, now: float) -> bool:
        return now - self._answered_at.get(part, now) > SILENT_AFTER_S

    def _answers(self, part: Address, now: float) -> list[ProcessTimes | None]:
        """The answer of the pending call, if it is ready."""
        call = self._calls.get(part)
        if call is not None and not self._is_silent(call[0], now) and not ray.wait([call[1]], timeout=0)[0]:
            return []
        self._call(part, now)
        return [] if call is None else [_result_of(call[1])]

    def _call(self, part: Address, now: float) -> None:
        self._calls.pop(part, None)
        its_home = home_of(self._processes[part])
        for other, process in self._processes.items():
            if home_of(process) == its_home and not self._is_silent(other, now):
                self._calls[part] = other, self._actor(other).look_at.remote(self._processes[part])
                return


def _result_of(call: Any) -> ProcessTimes | None:
    try:
        seen: ProcessTimes | None = ray.get(call, timeout=0)
    except (RayError, TimeoutError) as error:
        log.info("no answer about a silent process from its host: %s", type(error).__name__)
        return None
    return seen
