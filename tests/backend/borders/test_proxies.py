"""A request's client address: only a trusted proxy's header counts, and of it only the last untrusted address."""

import os
from pathlib import Path

import pytest
from django.test import RequestFactory

from backend.borders.proxies import client_ip, read_networks
from backend.environment import read_environment
from backend.missing import MissingSetting

ROOT = Path(__file__).resolve().parents[3]
COMPLETE = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("LAMINAR_") and name != "LAMINAR_TRUSTED_PROXIES"
}


@pytest.mark.parametrize(
    ("peer", "forwarded", "believed"),
    [
        ("192.0.2.7", "", "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),
        ("127.0.0.1", "198.51.100.1", "127.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.1.1.1, 198.51.100.1, 172.16.9.9", "198.51.100.1"),
        ("10.0.0.1", "10.0.0.1, 172.16.0.1", "10.0.0.1"),
        ("172.16.3.4", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("fd00::5", "198.51.100.1", "198.51.100.1"),
        ("172.15.0.1", "198.51.100.1", "172.15.0.1"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("", "1.1.1.1", ""),
    ],
)
def test_an_address_is_believed_only_of_our_own_proxies(peer: str, forwarded: str, believed: str) -> None:
    request = RequestFactory().get("/", headers={"X-Forwarded-For": forwarded} if forwarded else {})
    request.META["REMOTE_ADDR"] = peer
    trusted = read_networks("10.0.0.1, 172.16.0.0/12 fd00::/8")
    assert client_ip(request, trusted=trusted) == believed


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "10.0.0.0/33", "proxy", "*", "10.0.0.1;10.0.0.2"])
def test_a_proxy_that_cannot_be_read_stops_the_start(wrong: str) -> None:
    with pytest.raises(MissingSetting, match="LAMINAR_TRUSTED_PROXIES"):
        read_environment(COMPLETE | {"LAMINAR_TRUSTED_PROXIES": wrong})


def test_no_proxy_is_trusted_by_default() -> None:
    assert read_environment(COMPLETE).trusted_proxies == ()


def web_words(text: str) -> set[str]:
    return set(text.replace('"', " ").replace(",", " ").split())


def web_servers() -> list[set[str]]:
    image = next(line for line in (ROOT / "infra/images/web/Dockerfile").read_text().splitlines() if "CMD" in line)
    local = (ROOT / "infra/local/services/site.py").read_text().partition('"web": [')[2].partition("]")[0]
    return [web_words(image), web_words(local)]


def test_every_web_server_ignores_forwarded_headers() -> None:
    """By default uvicorn trusts X-Forwarded-For of every client on its machine, and would report the forged address as
    the peer's."""
    for words in web_servers():
        assert "uvicorn" in words and "--no-proxy-headers" in words


def test_every_web_server_bounds_requests() -> None:
    """By default uvicorn accepts 16 MiB in one socket frame, and waits for a request forever."""
    for words in web_servers():
        assert words >= {"--ws-max-size", "65536", "--http", "backend.api.limits.connections:BoundedHttp"}
