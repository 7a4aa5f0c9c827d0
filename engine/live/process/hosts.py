"""The hosts of the cluster that a job may use, as Ray knows them now.

Invariant: a view may be slightly stale; Ray raises if a process is started on a host that is gone.
"""

from collections.abc import Mapping

import ray
from ray._private.state import available_resources_per_node

from engine.policy.rooms import HostView
from engine.spec.environments.sandbox import has_sandbox
from engine.spec.labels import is_chosen


def read_hosts(selector: Mapping[str, str]) -> tuple[HostView, ...]:
    """The live hosts with these labels, in a stable order."""
    # No public function returns the free resources of each host.
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    alive = [node for node in nodes if node["Alive"] and is_chosen(node["Labels"], selector)]
    return tuple(
        HostView(
            id=node["NodeID"],
            name=f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})",  # several nodes may share a machine
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            free_gpus=free.get(node["NodeID"], {}).get("GPU", 0.0),
            has_sandbox=has_sandbox(node["Labels"]),
        )
        for node in sorted(alive, key=lambda node: str(node["NodeID"]))
    )
