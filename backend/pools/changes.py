"""Notices to the scheduler that a pool has more to give, or gives it otherwise.

Pools stand below jobs and do not know the scheduler; it fills this port.
"""

from datetime import datetime
from typing import Protocol

from backend.ports import Port


class PoolChanged(Protocol):
    def __call__(self, pool_id: str, now: datetime) -> None:
        """Inside the transaction of the change."""


pool_changed: Port[PoolChanged] = Port("rounds of a pool's scheduler")
