"""The addresses: that of the site in browsers, that by which Ray's nodes report, and the proxies on the way."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.checks.near import is_near

_PATIENCE: Final = httpx.Timeout(3.0)
FACTS: Final = "/internal/engine/facts"

PLAIN = Fault(
    name="address.plain",
    cure="Passwords go over the network as they are typed: end TLS in a proxy before the site, and write https:// in "
    "LAMINAR_PUBLIC_URL.",
)
NOT_ALLOWED = Fault(name="address.not_allowed", cure="Add that name to LAMINAR_ALLOWED_HOSTS; others are answered 400.")
ANY_HOST = Fault(
    name="address.any_host",
    cure="A stranger's Host header would end up in links: write the names themselves in LAMINAR_ALLOWED_HOSTS.",
)
ELSEWHERE = Fault(
    name="address.elsewhere",
    verdict=Verdict.WARNING,
    cure="See to the name's DNS, the proxy and its certificate. If only this machine cannot reach its own public "
    "address, all is well.",
)
LOOPS = Fault(
    name="address.loops",
    cure="The proxy does not say that people come by https: let it send X-Forwarded-Proto.",
)
CONTROL = Fault(
    name="address.control",
    cure="Nodes report there: see to LAMINAR_CONTROL_URL, and that its host name is in LAMINAR_ALLOWED_HOSTS.",
)
CONTROL_REDIRECTS = Fault(
    name="address.control_redirects",
    cure="Facts are not sent on: let LAMINAR_CONTROL_URL be the address that answers itself, such as the public one.",
)
NO_PROXIES = Fault(
    name="address.no_proxies",
    verdict=Verdict.WARNING,
    cure="Everybody seems to come from the proxy, and shares its limits: name it in LAMINAR_TRUSTED_PROXIES.",
)


def look_at_addresses(environment: Environment) -> Iterator[Finding]:
    parts = urlsplit(environment.public_url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (is_near(host) and host):
        yield PLAIN.found(f"{environment.public_url} is not https")
    else:
        yield good(f"people come to {environment.public_url}")
    yield from _names(environment, host)
    yield from _public(environment.public_url)
    yield _control(environment.control_url)
    if parts.scheme == "https":
        proxies = ", ".join(str(each) for each in environment.trusted_proxies)
        yield good(f"proxies that are believed: {proxies}") if proxies else NO_PROXIES.found("no proxy is believed")


def _names(environment: Environment, host: str) -> Iterator[Finding]:
    if "*" in environment.allowed_hosts:
        yield ANY_HOST.found("LAMINAR_ALLOWED_HOSTS is *")
    elif not any(host == name or (name.startswith(".") and host.endswith(name)) for name in environment.allowed_hosts):
        yield NOT_ALLOWED.found(f"LAMINAR_ALLOWED_HOSTS lacks {host}, the name in LAMINAR_PUBLIC_URL")


def _public(url: str) -> Iterator[Finding]:
    try:
        answer = httpx.get(f"{url}/help/", timeout=_PATIENCE, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield ELSEWHERE.found(f"{url}: {type(error).__name__}: {error}")
        return
    if answer.is_redirect and answer.headers.get("location", "").startswith(url):
        yield LOOPS.found(f"{url} leads to itself")
    elif answer.status_code != httpx.codes.OK:
        yield ELSEWHERE.found(f"{url}: {answer.status_code}")
    else:
        yield good("it answers there")


def _control(url: str) -> Finding:
    """As a driver would report; who has no token is answered 401 by us."""
    try:
        answer = httpx.post(url + FACTS, json={}, timeout=_PATIENCE, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return CONTROL.found(f"{url}: {type(error).__name__}: {error}")
    if answer.is_redirect:
        return CONTROL_REDIRECTS.found(f"{url} leads on to {answer.headers.get('location', 'somewhere')[:120]}")
    if answer.status_code != httpx.codes.UNAUTHORIZED:
        return CONTROL.found(f"{url}: {answer.status_code} instead of 401, so something else answers there")
    return good(f"nodes report to {url}")
