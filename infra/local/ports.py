"""Ports of a home, claimed: no two sites on one machine choose the same.

A claim (`claims.py`) has the scope of a port: one network namespace, all users.

Invariants:
- live claims differ, across homes and users;
- a claim outlives restarts of the service: no other service gets the port between two starts;
- a home keeps its ports over restarts unless another program listens there; `ports.json` is written before any service
  learns of a port.
"""

import contextlib
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from infra.local.claims import claim
from infra.local.home import Home

PREFERRED_PORTS = {"web": 8400, "postgres": 8432, "valkey": 8479, "ray_dashboard": 8465, "ray_gcs": 8463}
PORT_NAMES = (*PREFERRED_PORTS, "ray_client", "ray_agent")
# Below the range from which the kernel takes ports for outgoing connections, so that none of them takes it.
CHOSEN_FROM = range(15_000, 32_000)


@dataclass(frozen=True, slots=True)
class Claim:
    port: int
    holder: socket.socket


class PortClaims(contextlib.AbstractContextManager["PortClaims"]):
    """The ports of one home, its own until `close`."""

    def __init__(self, home: Home, *, preferred: Mapping[str, int] = PREFERRED_PORTS) -> None:
        self._home = home
        wanted = {**preferred, **(home.written_ports() if home.ports_file.exists() else {})}
        self._claims = {name: (name in wanted and _claim(wanted[name])) or _claim_any() for name in PORT_NAMES}
        home.write_ports(self.numbers)

    @property
    def numbers(self) -> dict[str, int]:
        return {name: each.port for name, each in self._claims.items()}

    def replace_taken(self, names: Iterable[str]) -> bool:
        """Replace those ports on which another program listens. To be called while their service does not run."""
        taken = [name for name in names if not is_free(self._claims[name].port)]
        for name in taken:
            self._claims[name].holder.close()
            self._claims[name] = _claim_any()
        if taken:
            self._home.write_ports(self.numbers)
        return bool(taken)

    def close(self) -> None:
        for each in self._claims.values():
            each.holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_OF_THIS_PROCESS: list[Claim] = []


def free_port() -> int:
    """A port for a server that this process starts, claimed until the process ends."""
    _OF_THIS_PROCESS.append(_claim_any())
    return _OF_THIS_PROCESS[-1].port


def _claim_any() -> Claim:
    while (claimed := _claim(secrets.choice(CHOSEN_FROM))) is None:
        pass
    return claimed


def _claim(port: int) -> Claim | None:
    holder = claim(f"port-{port}")
    if holder is None:
        return None
    if not is_free(port):
        holder.close()
        return None
    return Claim(port, holder)


def is_free(port: int) -> bool:
    """Whether a server can listen there. Lingering connections of an earlier server do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
