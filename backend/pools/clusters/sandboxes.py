"""The sandbox on a pool's hosts: by their own word, as the pool's Ray was last seen to hand it on.

Invariant: hosts that take no work (a head without CPUs) do not count, and what nobody has said is held against nobody.
"""

from collections.abc import Mapping
from typing import Any

from backend.pools.models import RayLook, ResourcePool
from engine.spec.sandbox import has_sandbox


def lacks_sandbox(pool: ResourcePool) -> bool:
    """All of its hosts say that they have none."""
    seen: list[Mapping[str, Any]] = RayLook.objects.filter(pool=pool).values_list("hosts", flat=True).first() or []
    working = [host["labels"] for host in seen if host["cpus"]]
    return bool(working) and not any(map(has_sandbox, working))
