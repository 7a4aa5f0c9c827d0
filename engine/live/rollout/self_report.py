"""A replica's report of its own time and engine load, about once a second."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from engine.inference.port import EngineView
from engine.live.rollout.activity import ActivityLog
from engine.pipeline.messages.to_driver import Doing, ReplicaObserved
from engine.pipeline.messages.to_rollout import LoadMeasured

EVERY_S: Final = 1.0


class SelfReport:
    def __init__(self, *, replica: int, incarnation: int, observe: Callable[[ReplicaObserved], None]) -> None:
        self._replica, self._incarnation, self._observe = replica, incarnation, observe
        self._activity = ActivityLog("idle", time.monotonic())
        self._due_at = float("-inf")
        self._num_steps = self._num_installs = 0
        self._decode_s = self._install_s = 0.0

    @contextmanager
    def decoding(self, num_steps: Callable[[], int]) -> Iterator[None]:
        """`num_steps`: steps of the engines since they started."""
        started = time.monotonic()
        yield
        self._decode_s += time.monotonic() - started
        self._num_steps = num_steps()

    @contextmanager
    def installing(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._install_s += time.monotonic() - started
        self._num_installs += 1

    def turn_to(self, doing: Doing) -> None:
        self._activity.turn_to(doing, time.monotonic())

    def is_due(self, now: float) -> bool:
        return now >= self._due_at

    def measure(self, now: float, view: EngineView, *, num_queued: int, num_with_environment: int) -> LoadMeasured:
        """`num_queued`: samples that wait for a place on this replica."""
        self._due_at = now + EVERY_S
        self._observe(
            ReplicaObserved(
                replica=self._replica,
                incarnation=self._incarnation,
                version=view.version,
                observed_at=now,
                spans=self._activity.take(now),
                kv_used=view.kv_used,
                num_running=view.num_running,
                num_waiting=view.num_waiting + num_queued,
                num_with_environment=num_with_environment,
                num_prefilled=view.num_prefilled,
                num_decoded=view.num_decoded,
                num_steps=self._num_steps,
                decode_s=self._decode_s,
                num_installs=self._num_installs,
                install_s=self._install_s,
            )
        )
        return LoadMeasured(kv_used=view.kv_used, num_tokens=view.num_decoded)
