"""Whether what is said to a server stays on this machine."""

import ipaddress


def is_near(host: str) -> bool:
    """The loopback, a socket, or a name of one word: a neighbour in the same composition of containers."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return not name or name.startswith("/") or "." not in name or name.endswith(".localhost")
