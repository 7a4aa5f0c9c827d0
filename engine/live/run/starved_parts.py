"""Asks the hosts of silent parts whether the part's process was waiting for a core.

    a part answers no poll ──SILENT_AFTER_S──▶ its host looks at its process, every second
                                                ├─▶ runnable, no core: the brains are told for how long
                                                └─▶ stopped, asleep, gone, no answer: nothing, and its silence counts

Invariants:
- this host is asked without a process in between, any other one through an actor there that still answers;
- a question to another host never blocks the supervisor.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import ray
from ray.exceptions import RayError

from engine.live.process.core_waits import Looks, ProcessNamed, ProcessSeen, home, home_of, look_at
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_manager import PartStarved

log = logging.getLogger(__name__)

SILENT_AFTER_S: Final = 3.0  # three polls that are not answered


class StarvedParts:
    def __init__(self, actor: Callable[[Address], Any]) -> None:
        self._actor = actor
        self._processes: dict[Address, str] = {}
        self._incarnations: dict[Address, int] = {}
        self._heard_at: dict[Address, float] = {}
        self._asked: dict[Address, tuple[Address, Any]] = {}
        """Silent part → the part that was asked, and its answer to come."""
        self._looks = Looks()

    def introduce(self, part: Address, incarnation: int, named: ProcessNamed) -> None:
        self._processes[part], self._incarnations[part] = named.process, incarnation

    def hear(self, part: Address, now: float) -> None:
        self._heard_at[part] = now

    def forget(self, part: Address) -> None:
        """Its process is ended."""
        self._processes.pop(part, None)
        self._heard_at.pop(part, None)
        self._asked.pop(part, None)

    def news(self, now: float) -> Iterator[PartStarved]:
        """Of silent parts that have waited for a core since the last call."""
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
        return now - self._heard_at.get(part, now) > SILENT_AFTER_S

    def _answers(self, part: Address, now: float) -> list[ProcessSeen | None]:
        """One, or none yet."""
        asked = self._asked.get(part)
        if asked is not None and not self._is_silent(asked[0], now) and not ray.wait([asked[1]], timeout=0)[0]:
            return []
        self._ask(part, now)
        return [] if asked is None else [_answer(asked[1])]

    def _ask(self, part: Address, now: float) -> None:
        self._asked.pop(part, None)
        its_home = home_of(self._processes[part])
        for other, process in self._processes.items():
            if home_of(process) == its_home and not self._is_silent(other, now):
                self._asked[part] = other, self._actor(other).look_at.remote(self._processes[part])
                return


def _answer(asked: Any) -> ProcessSeen | None:
    try:
        seen: ProcessSeen | None = ray.get(asked, timeout=0)
    except (RayError, TimeoutError) as error:
        log.info("a host was asked about a silent process, and did not say: %s", type(error).__name__)
        return None
    return seen
