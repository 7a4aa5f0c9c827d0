"""Telling whoever schedules that a pool has more to give, or gives it otherwise.

Pools stand below jobs and do not know the scheduler; it listens here.
"""

from django.dispatch import Signal

pool_changed = Signal()
"""Sent inside the transaction of the change, with `pool_id` and `now`."""
