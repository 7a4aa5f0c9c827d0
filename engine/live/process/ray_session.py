"""The connection to Ray: an existing cluster, or a local one of our own.

Invariants:
- Ray's usage statistics are disabled before any import of Ray: nothing is sent out of the cluster;
- our own cluster listens on the loopback only; its token (which permits running code here), sockets and logs lie in a
  folder that other users cannot enter and that is deleted with it.
"""

import logging
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray._private import ray_constants

from engine.live.process.interruptions import obey_signals
from engine.spec.logs.log_text import JsonLine, OneLine

log = logging.getLogger(__name__)

_MANY_NODES: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless this is off, Ray replaces 127.0.0.1 by the machine's address, and then listens on every interface."""
_OWN_FOLDERS: Final[list[Path]] = []


def connect_to_cluster(form: type[OneLine] = OneLine) -> None:
    """Connects by RAY_ADDRESS and RAY_AUTH_MODE, which are set in a Ray job. Ray repeats the actors' log lines in this
    process, with a prefix that breaks JSON; with a JSON log they stay in Ray's own files."""
    ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=form is not JsonLine)
    obey_signals()


def start_own() -> None:
    """Starts a local Ray, and retries once: its processes get 30 s to start, which a busy machine may exceed."""
    folder = _private_folder()
    try:
        _start_local(folder)
    except Exception as error:  # noqa: BLE001 - Ray raises no type of its own here
        log.warning("Ray did not start, retrying once: %s", error)
        ray.shutdown()
        _start_local(folder)
    obey_signals()


def _private_folder() -> Path:
    """Ray's default folders are open to every user of the machine: /tmp/ray to write, ~/.ray/auth_token to read."""
    folder = Path(tempfile.mkdtemp(prefix="laminar-"))  # short: a socket path has at most 107 bytes
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)  # it would override the file
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), _MANY_NODES: "0"})
    # Ray has read those three in this process already.
    ray_constants.ENABLE_RAY_CLUSTER = False
    raylet: Any = ray._raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    _OWN_FOLDERS.append(folder)
    return folder


def _start_local(folder: Path) -> None:
    ray.init(
        address="local",
        include_dashboard=False,
        logging_level=logging.WARNING,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder / "ray"),  # Ray opens it to all users; its parent is private
    )


def in_interpreter(python: Path, started_with: Mapping[str, str]) -> dict[str, Any]:
    """The runtime environment of an actor in another Python. Ray passes the path to a shell unquoted."""
    return {"py_executable": shlex.quote(str(python)), "env_vars": dict(started_with)}


def disconnect() -> None:
    if ray.is_initialized():
        ray.shutdown()
    while _OWN_FOLDERS:
        shutil.rmtree(_OWN_FOLDERS.pop(), ignore_errors=True)
