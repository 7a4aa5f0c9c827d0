"""No other user or machine can reach a Ray of our own (`python -m engine run`, the benches)."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[4]
STARTS = """
import os, sys
from engine.live.process.ray_session import disconnect, start_own
start_own()
import ray
assert ray.get(ray.remote(num_cpus=0)(lambda: 17).remote()) == 17
print(os.environ["RAY_AUTH_TOKEN_PATH"], ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
disconnect()
"""


class Own(NamedTuple):
    starter: int
    token: Path
    address: str


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    """A process with its own Ray."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS],
        env=environment | {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    token, address = starter.stdout.readline().split()
    yield Own(starter.pid, Path(token), address)
    starter.communicate(timeout=180)
    assert starter.returncode == 0
    assert not Path(token).parent.exists()


@pytest.mark.long
def test_every_listening_socket_is_on_the_loopback(own: Own) -> None:
    tree = [psutil.Process(own.starter), *psutil.Process(own.starter).children(recursive=True)]
    listening = [
        (process.name(), ip_address(connection.laddr.ip.removeprefix("::ffff:")), connection.laddr.port)
        for process in tree
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    ]
    assert listening
    assert [each for each in listening if not each[1].is_loopback] == []


@pytest.mark.long
def test_other_users_cannot_read_token_or_enter_folder(own: Own) -> None:
    token = own.token
    assert token.is_file() and token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    assert any(token.parent.glob("ray/session_*/sockets")), "Ray's sockets are in that folder too"
    if os.geteuid() != 0:
        return
    other_user: dict[str, Any] = {"user": 0x5FFFFFFF, "group": 0x5FFFFFFF, "extra_groups": []}
    for command in (["cat", str(token)], ["ls", str(token.parent)]):
        child = subprocess.run(command, capture_output=True, text=True, **other_user)
        assert child.returncode != 0 and "Permission denied" in child.stderr


@pytest.mark.long
def test_client_without_the_token_is_refused(own: Own) -> None:
    code = "import sys, ray; print(len(ray._raylet.GcsClient(address=sys.argv[1]).get_all_node_info()))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for token, is_accepted in ((own.token.read_text(), True), ("0" * 64, False)):
        with_token = environment | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        command = [sys.executable, "-c", code, own.address]
        client = subprocess.run(command, env=with_token, capture_output=True, text=True)
        assert (client.returncode == 0) is is_accepted, client.stderr
