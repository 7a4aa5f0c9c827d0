"""Checks every node of the cluster from inside: `python -m engine.live.run.node_probe --control-url URL --token T`.

The control plane's `manage.py doctor` submits it; it prints one line with a report of each node.

Invariants:
- it holds no device, and leaves no file on any node;
- every check ends within seconds, and a node that does not answer gets a report too.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.live.process.ray_session import connect_to_cluster, disconnect
from engine.live.run.node_inspection import inspect_node, line_of
from engine.spec.node_report import COMMAND, NodeReport, NodeReports

_WITHIN_S: Final = 60.0
"""A node's first worker imports Ray and the engine first: 5 s here, more where many start at once."""
_LATE: Final = f"no answer within {_WITHIN_S:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {COMMAND}", description="Checks every node of the cluster.")
    parser.add_argument("--control-url", required=True, help="the URL that this cluster's drivers report to")
    parser.add_argument("--token", default="", help="the token of the control plane's file in the shared folder")
    arguments = parser.parse_args()
    connect_to_cluster()
    try:
        reports = [*_reports(arguments.control_url, arguments.token)]
    finally:
        disconnect()
    print(NodeReports(nodes=reports).line())  # noqa: T201  # the control plane reads the job's log
    return 0


def _reports(control_url: str, token: str) -> Iterator[NodeReport]:
    look: Any = ray.remote(num_cpus=0, max_retries=0)(inspect_node)
    rows: Any = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = {row["NodeID"]: row["NodeManagerAddress"] for row in rows if row["Alive"]}
    stores = {row["NodeID"]: int(row["Resources"].get("object_store_memory", 0)) for row in rows}
    references = {
        node: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            node, address, control_url, token
        )
        for node, address in nodes.items()
    }
    answered, _ = ray.wait([*references.values()], num_returns=len(references), timeout=_WITHIN_S)
    for node, reference in references.items():
        if reference not in answered:
            yield NodeReport(node_id=node, address=nodes[node], silent=_LATE)
            continue
        try:
            yield ray.get(reference).model_copy(update={"object_store_bytes": stores[node]})
        except ray.exceptions.RayError as error:
            yield NodeReport(node_id=node, address=nodes[node], silent=line_of(error))


if __name__ == "__main__":
    sys.exit(main())
