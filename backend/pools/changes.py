"""The notification to the scheduler that a pool's capacity or terms have changed.

Pools are below jobs and do not know the scheduler, which fills this port.
"""

from datetime import datetime
from typing import Protocol

from backend.ports import Port


class PoolChanged(Protocol):
    def __call__(self, pool_id: str, now: datetime) -> None:
        """Called inside the change's transaction."""


pool_changed: Port[PoolChanged] = Port("rounds of a pool's scheduler")
