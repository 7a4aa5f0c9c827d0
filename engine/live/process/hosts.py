"""The hosts of the cluster, as Ray knows them at this moment.

Invariant: what stands here may be a moment old; who starts something on a host is told by Ray if that is gone.
"""

import ray
from ray._private.state import available_resources_per_node

from engine.policy.placement import HostView


def read_hosts() -> tuple[HostView, ...]:
    """Those that are alive, in an order that stays."""
    # What each host has left is told by no public function.
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return tuple(
        HostView(
            id=node["NodeID"],
            name=f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})",  # several may be on one machine
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            free_gpus=free.get(node["NodeID"], {}).get("GPU", 0.0),
        )
        for node in sorted(alive, key=lambda node: str(node["NodeID"]))
    )
