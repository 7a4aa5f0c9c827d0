"""The links of one run's processes: the address and the token by which they reach each other.

Invariant: the token is made again for every run and never leaves its processes.
"""

import secrets
from dataclasses import dataclass, field

import ray


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    """Names shared memory, for people who look into it."""
    token: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def address(self) -> str:
        """Of this host, as the others see it; called in an actor."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return address
