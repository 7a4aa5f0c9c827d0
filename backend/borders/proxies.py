"""Of whom a request comes: the peer of the connection, or whom a proxy of ours names.

    client, 10.0.0.9          X-Forwarded-For: anything, client        the rightmost that is no proxy of ours
    ──▶ 192.0.2.7 (ours) ──▶ X-Forwarded-For: anything, client, 10.0.0.9

Invariants:
- X-Forwarded-For is believed of the addresses and networks that LAMINAR_TRUSTED_PROXIES names, and of nobody else; the
  web server itself believes none (`--no-proxy-headers`: its own default believes whoever connects from this machine);
- and then only its last stranger: whoever calls can write anything to the left of what our own proxy adds;
- one header that proxies set is enough to be taken for a stranger's request, whoever sends it.
"""

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the environment is read before Django is there
    from django.http import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_FORWARDED: Final = "X-Forwarded-For"
_OF_PROXIES: Final = (_FORWARDED, "Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP", "Via")


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks such as 10.0.0.0/8, by commas or spaces. Raises `ValueError`, naming the wrong one."""
    return tuple(ipaddress.ip_network(each) for each in text.replace(",", " ").split())


def client_ip(request: "HttpRequest", *, trusted: Iterable[Network]) -> str:
    """The address that the request came from, as text; empty where a server gives none (a unix socket)."""
    networks = tuple(trusted)
    peer = _address(request.META.get("REMOTE_ADDR", ""))
    for hop in reversed(request.headers.get(_FORWARDED, "").split(",")):
        if peer is None or not _is_in(peer, networks):
            break
        named = _address(hop.strip())
        if named is None:
            break
        peer = named
    return "" if peer is None else str(peer)


def neighbourhood(ip: str) -> str:
    """What one stranger has of addresses: an IPv4 address, or the 2**64 of an IPv6 network."""
    address = _address(ip)
    if address is None or address.version == 4:
        return ip or "unknown"
    return str(ipaddress.ip_network((address, 64), strict=False))


def is_from_this_machine(request: "HttpRequest", *, trusted: Iterable[Network]) -> bool:
    """And not from elsewhere through a proxy here: it says so by a header, or its address is one that was named."""
    peer = _address(request.META.get("REMOTE_ADDR", ""))
    if peer is None or not peer.is_loopback or _is_in(peer, tuple(trusted)):
        return False
    return not came_through_a_proxy(request)


def came_through_a_proxy(request: "HttpRequest") -> bool:
    return any(header in request.headers for header in _OF_PROXIES)


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address  # a server on :: sees IPv4 as ::ffff:10.0.0.1
