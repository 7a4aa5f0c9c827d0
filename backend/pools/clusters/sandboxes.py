"""Whether a pool's hosts have a sandbox, by their own reports as last seen through the pool's Ray.

Invariant: hosts without CPUs (a head node) do not count, and a host without a report counts as having one.
"""

from collections.abc import Mapping
from typing import Any

from backend.pools.models import ClusterProbe, ResourcePool
from engine.spec.environments.sandbox import has_sandbox


def lacks_sandbox(pool: ResourcePool) -> bool:
    """True if every host reports that it has none."""
    seen: list[Mapping[str, Any]] = ClusterProbe.objects.filter(pool=pool).values_list("hosts", flat=True).first() or []
    working = [host["labels"] for host in seen if host["cpus"]]
    return bool(working) and not any(map(has_sandbox, working))
