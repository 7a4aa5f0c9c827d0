"""What a replica tells of itself about once a second: what it did with its time, and what its engine holds."""

import time
from collections.abc import Callable
from typing import Final

from engine.inference.port import RolloutEngine
from engine.live.activity import ActivityLog
from engine.pipeline.messages import LoadMeasured
from engine.pipeline.reports import Doing, ReplicaObserved

EVERY_S: Final = 1.0


class ReplicaWatch:
    def __init__(
        self, *, replica: int, incarnation: int, engine: RolloutEngine, observe: Callable[[ReplicaObserved], None]
    ) -> None:
        self._replica, self._incarnation, self._engine, self._observe = replica, incarnation, engine, observe
        self._activity = ActivityLog("idle", time.monotonic())
        self._due_at = float("-inf")

    def turn_to(self, doing: Doing) -> None:
        self._activity.turn_to(doing, time.monotonic())

    def measure(self, now: float, *, version: int, num_with_environment: int) -> LoadMeasured | None:
        """None: not due yet."""
        if now < self._due_at:
            return None
        self._due_at = now + EVERY_S
        view = self._engine.view()
        self._observe(
            ReplicaObserved(
                replica=self._replica,
                incarnation=self._incarnation,
                version=version,
                observed_at=now,
                spans=self._activity.take(now),
                kv_used=view.kv_used,
                num_running=view.num_running,
                num_waiting=view.num_waiting,
                num_with_environment=num_with_environment,
                num_prefilled=view.num_prefilled,
                num_decoded=view.num_decoded,
            )
        )
        return LoadMeasured(kv_used=view.kv_used, num_tokens=view.num_decoded)
