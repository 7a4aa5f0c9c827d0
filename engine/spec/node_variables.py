"""The variables of the environment of Ray nodes, which drivers and parts of jobs read there: each is declared once.

Those that the control plane reads too have their text from here (backend/environment.py). `python -m infra.variables`
documents all of them; docker-compose.yml, infra/kuberay, infra/slurm and `make up` set exactly these. Not here: what
Ray (RAY_…) and the client of the bucket (AWS_…) read themselves.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NodeVariable:
    text: str
    """Description for operators: one line of Markdown that ends with a full stop."""
    when_unset: str = ""
    """The effect of an empty value; empty: it must be set."""


NODE_VARIABLES: Final[Mapping[str, NodeVariable]] = {
    "LAMINAR_STORE_DIR": NodeVariable(
        "Folder that the control plane and every Ray node share (set it there too): checkpoints, undelivered facts. "
        "With `LAMINAR_STORE_URL`, the hosts of a trainer's further devices may have a folder of their own."
    ),
    "LAMINAR_STORE_URL": NodeVariable(
        "Where checkpoints and trajectories go, such as `s3://bucket/prefix`.", "the shared folder"
    ),
    "LAMINAR_STORE_ENDPOINT": NodeVariable("Address of an S3-compatible server that is not Amazon's.", "Amazon's"),
    "LAMINAR_STORE_REGION": NodeVariable("Region of the bucket.", "`AWS_DEFAULT_REGION`"),
    "LAMINAR_STORE_ADDRESSING": NodeVariable(
        "`path` (https://host/bucket/key) or `virtual` (https://bucket.host/key).", "`path`"
    ),
    "LAMINAR_LOG_FORMAT": NodeVariable(
        "`json` makes every line of a log an object (see [Logs](#logs)); set it on Ray nodes too.", "text"
    ),
    "LAMINAR_OTLP_URL": NodeVariable(
        "A collector of traces, such as `http://collector:4318` (see [Traces](#traces)); set it on Ray nodes too.",
        "no traces",
    ),
    "LAMINAR_NODE_CACHE_DIR": NodeVariable(
        "Folder on each node for the data sets and models that it fetched; one path for all nodes.",
        "`fetched/assets` in `LAMINAR_STORE_DIR`",
    ),
    "LAMINAR_NODE_CACHE_GB": NodeVariable("Gigabytes kept there at most.", "half of that disk"),
    "LAMINAR_VLLM_PYTHON": NodeVariable(
        "Interpreter of vLLM's environment, at the same path on every node.", "this copy's own (`make vllm`)"
    ),
    "LAMINAR_SANDBOX": NodeVariable(
        "`gvisor` runs untrusted code inside gVisor (`runsc` on the PATH, writable control groups).", "bubblewrap"
    ),
}


def read_variable(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Empty if unset. Raises `KeyError` if the variable is not declared."""
    if name not in NODE_VARIABLES:
        raise KeyError(name)
    return environment.get(name, "")
