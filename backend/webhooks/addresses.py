"""Webhook addresses: on the public internet only, never this network.

`GuardedNetwork` resolves a name once, requires every address to be global, and connects to the address it checked. So a
name that resolves differently the next time (DNS rebinding) reaches nothing inside, and neither does any spelling of an
inner address: decimal, octal, IPv6, mapped, translated.

Invariants:
- https only, no user name in the URL, no redirects;
- errors do not distinguish this machine, an inner address, an inner name and a name that does not exist, so they map
  nothing of this network;
- for development, only if the environment allows it: http to this machine.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpcore

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]

_PUBLIC_V6 = ipaddress.ip_network("2000::/3")  # all that is allocated
_HERE = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_NUMBERS = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+)(?:\.(?:0[xX][0-9a-fA-F]+|[0-9]+)){0,3}")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_FORMER_6TO4_RELAYS = ipaddress.ip_network("192.88.99.0/24")

NOT_PUBLIC: Final = "the host is not on the public internet, or its name does not resolve"


class ForbiddenAddress(ValueError):
    """This URL is not allowed for webhooks."""


def checked_url(url: str, *, allow_loopback: bool) -> str:
    """Returns the URL after every check that needs no DNS. The text of `ForbiddenAddress` is shown to the user."""
    parts = _split(url)
    if parts.username is not None or parts.password is not None:
        raise ForbiddenAddress("must not contain a user name or password: verify the signature of messages instead")
    host = parts.hostname or ""
    literal = _literal(host)
    is_here = _is_name_of_this_machine(host) or (literal is not None and literal.is_loopback)
    local = allow_loopback and is_here
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise ForbiddenAddress("must begin with https://")
    if is_here and not local:
        raise ForbiddenAddress(NOT_PUBLIC)
    if literal is not None and not local:
        refuse_inner(literal)
    return url


def refuse_inner(address: Address) -> None:
    """Raises `ForbiddenAddress` unless the address is public, however it is wrapped (mapped, 6to4, NAT64)."""
    if not _is_public(address):
        raise ForbiddenAddress(NOT_PUBLIC)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
        if address.teredo is not None or address not in _PUBLIC_V6:
            return False
    elif address in _FORMER_6TO4_RELAYS:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _split(url: str) -> SplitResult:
    if not url.isascii() or any(char <= " " or char in '\\"<>^`{|}' for char in url):
        raise ForbiddenAddress("must be plain ASCII, with spaces and other characters percent-encoded")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ForbiddenAddress(f"must be a URL such as https://example.org/hook: {error}") from None
    if not parts.hostname or port == 0:
        raise ForbiddenAddress("must be a URL such as https://example.org/hook: it has no host")
    return parts


def _literal(host: str) -> Address | None:
    """Also parses the spellings that systems accept: 127.1, 2130706433, 0x7f.1."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ipaddress.IPv4Address(socket.inet_aton(host)) if _NUMBERS.fullmatch(host) and _is_aton(host) else None


def _is_aton(host: str) -> bool:
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True


def _is_name_of_this_machine(host: str) -> bool:
    name = host.rstrip(".").lower()
    return name in _HERE or name.endswith(".localhost")


async def resolve(host: str, port: int) -> list[str]:
    """The system's resolver, which also accepts 2130706433 and 0x7f.1."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """A network that connects to checked addresses only. TLS still verifies the name, which httpcore keeps for SNI."""

    def __init__(self, *, resolve: Resolve = resolve, allow_loopback: bool = False) -> None:
        self._resolve, self._allow_loopback = resolve, allow_loopback
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            texts = await self._resolve(host, port)
        except (OSError, UnicodeError):
            texts = []
        if not texts:
            raise ForbiddenAddress(NOT_PUBLIC)
        for text in texts:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not (self._allow_loopback and address.is_loopback):
                refuse_inner(address)
        return await self._network.connect_tcp(texts[0], port, timeout, local_address, socket_options)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddress("webhooks cannot use Unix sockets")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)
