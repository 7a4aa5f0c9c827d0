"""The connection to Ray: a cluster that is there already, or one of our own on this machine.

Invariant: Ray's usage statistics are off before Ray is imported by anyone: nothing is sent out of the cluster.
"""

import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from engine.live.process.interruptions import obey_signals

log = logging.getLogger(__name__)


def connect_to_cluster() -> None:
    """RAY_ADDRESS and RAY_AUTH_MODE say where and how; in a Ray job they are set."""
    ray.init(address="auto", logging_level=logging.WARNING)
    obey_signals()


def start_own() -> None:
    """Ray gives its own processes 30 s to start, which a busy machine may exceed once."""
    try:
        _start_local()
    except Exception as error:  # noqa: BLE001 - Ray raises no type of its own here
        log.warning("Ray did not start, trying once more: %s", error)
        ray.shutdown()
        _start_local()
    obey_signals()


def _start_local() -> None:
    ray.init(address="local", include_dashboard=False, logging_level=logging.WARNING)


def in_interpreter(python: Path, started_with: Mapping[str, str]) -> dict[str, Any]:
    """The runtime environment of an actor that runs in another Python. Ray hands the path to a shell as it is."""
    return {"py_executable": shlex.quote(str(python)), "env_vars": dict(started_with)}


def disconnect() -> None:
    if ray.is_initialized():
        ray.shutdown()
