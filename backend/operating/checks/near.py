"""Whether a connection to a server stays on this machine."""

import ipaddress


def is_near(host: str) -> bool:
    """True for loopback, a socket, or a one-word name, which is a service in the same composition of containers."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return not name or name.startswith("/") or "." not in name or name.endswith(".localhost")
