"""A request's client address: the TCP peer, or the address in X-Forwarded-For if the peer is a trusted proxy.

    client, 10.0.0.9           X-Forwarded-For: anything, client        the rightmost that is not a trusted proxy
    ──▶ 192.0.2.7 (trusted) ──▶ X-Forwarded-For: anything, client, 10.0.0.9

Invariants:
- X-Forwarded-For is trusted only from the addresses and networks in LAMINAR_TRUSTED_PROXIES; uvicorn itself trusts none
  (`--no-proxy-headers`: its default trusts every client on this machine);
- of the header, only the last untrusted address counts: a client controls everything left of what a trusted proxy adds;
- one header that proxies set suffices for a request to count as not local, from any sender.
"""

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the environment is read before Django is set up
    from django.http import HttpRequest

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_FORWARDED: Final = "X-Forwarded-For"
_OF_PROXIES: Final = (_FORWARDED, "Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-IP", "Via")


def read_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks such as 10.0.0.0/8, separated by commas or spaces. Raises `ValueError`."""
    return tuple(ipaddress.ip_network(each) for each in text.replace(",", " ").split())


def client_ip(request: "HttpRequest", *, trusted: Iterable[Network]) -> str:
    """The client's address as text; empty if the server provides none (a unix socket)."""
    networks = tuple(trusted)
    peer = _parse_address(request.META.get("REMOTE_ADDR", ""))
    for hop in reversed(request.headers.get(_FORWARDED, "").split(",")):
        if peer is None or not _is_in(peer, networks):
            break
        named = _parse_address(hop.strip())
        if named is None:
            break
        peer = named
    return "" if peer is None else str(peer)


def neighbourhood(ip: str) -> str:
    """The addresses of one client, for limits: an IPv4 address, or an IPv6 /64 network."""
    address = _parse_address(ip)
    if address is None or address.version == 4:
        return ip or "unknown"
    return str(ipaddress.ip_network((address, 64), strict=False))


def is_from_this_machine(request: "HttpRequest", *, trusted: Iterable[Network]) -> bool:
    """True for a local client. A local proxy, known by its headers or its trusted address, does not count as one."""
    peer = _parse_address(request.META.get("REMOTE_ADDR", ""))
    if peer is None or not peer.is_loopback or _is_in(peer, tuple(trusted)):
        return False
    return not is_proxied(request)


def is_proxied(request: "HttpRequest") -> bool:
    return any(header in request.headers for header in _OF_PROXIES)


def _is_in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _parse_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address  # a server on :: sees IPv4 as ::ffff:10.0.0.1
