"""The links between a run's processes: their addresses and the token that they share.

Invariant: every run has a new token, which never leaves its processes.
"""

import secrets
from dataclasses import dataclass, field

import ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """A prefix of the run's shared memory, so that people can attribute it."""
    token: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def address(self) -> str:
        """This host's address as other hosts reach it. Called in an actor."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address
