"""The connection to Ray: a cluster that is there already, or one of our own on this machine.

Invariants:
- Ray's usage statistics are off before Ray is imported by anyone: nothing is sent out of the cluster;
- our own cluster listens on the loopback only, and everything that it keeps (its token, which lets whoever knows it run
  code here, its sockets, its logs) lies in a folder that nobody else may enter and that ends with it.
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
from engine.spec.log_text import JsonLine, OneLine

log = logging.getLogger(__name__)

_MANY_NODES: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Unless this is off, Ray turns 127.0.0.1 into the machine's address, and then listens on every interface."""
_OWN_FOLDERS: Final[list[Path]] = []


def connect_to_cluster(form: type[OneLine] = OneLine) -> None:
    """RAY_ADDRESS and RAY_AUTH_MODE say where and how; in a Ray job they are set. Ray repeats the actors' lines in this
    process' log, with words of its own before each, which no reader of JSON would take: there they stay in Ray's."""
    ray.init(address="auto", logging_level=logging.WARNING, log_to_driver=form is not JsonLine)
    obey_signals()


def start_own() -> None:
    """Ray gives its own processes 30 s to start, which a busy machine may exceed once."""
    folder = _private_folder()
    try:
        _start_local(folder)
    except Exception as error:  # noqa: BLE001 - Ray raises no type of its own here
        log.warning("Ray did not start, trying once more: %s", error)
        ray.shutdown()
        _start_local(folder)
    obey_signals()


def _private_folder() -> Path:
    """Ray's own places are open to every user of the machine: /tmp/ray may be written, and ~/.ray/auth_token read."""
    folder = Path(tempfile.mkdtemp(prefix="laminar-"))  # short: the path of a socket has at most 107 bytes
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)  # it would be taken before the file
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), _MANY_NODES: "0"})
    # This process has read those three already.
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
        _temp_dir=str(folder / "ray"),  # which Ray opens to everybody, within what is closed
    )


def in_interpreter(python: Path, started_with: Mapping[str, str]) -> dict[str, Any]:
    """The runtime environment of an actor that runs in another Python. Ray hands the path to a shell as it is."""
    return {"py_executable": shlex.quote(str(python)), "env_vars": dict(started_with)}


def disconnect() -> None:
    if ray.is_initialized():
        ray.shutdown()
    while _OWN_FOLDERS:
        shutil.rmtree(_OWN_FOLDERS.pop(), ignore_errors=True)
