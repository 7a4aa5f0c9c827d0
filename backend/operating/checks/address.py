"""Checks addresses: the site's in browsers, that for reports of Ray's nodes, and the proxies in between."""

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
    cure="Passwords are sent in the clear: terminate TLS in a proxy in front of the site, and set LAMINAR_PUBLIC_URL "
    "to an https:// address.",
)
NOT_ALLOWED = Fault(
    name="address.not_allowed", cure="Add that name to LAMINAR_ALLOWED_HOSTS; requests for other names get 400."
)
ANY_HOST = Fault(
    name="address.any_host",
    cure="A stranger's Host header would end up in links: list the site's names in LAMINAR_ALLOWED_HOSTS.",
)
ELSEWHERE = Fault(
    name="address.elsewhere",
    verdict=Verdict.WARNING,
    cure="Check the name's DNS, the proxy and its certificate. Ignore this if only this machine cannot reach its own "
    "public address.",
)
LOOPS = Fault(
    name="address.loops",
    cure="The proxy does not forward that requests came by https: let it send X-Forwarded-Proto.",
)
CONTROL = Fault(
    name="address.control",
    cure="Nodes report there: check LAMINAR_CONTROL_URL, and that its host name is in LAMINAR_ALLOWED_HOSTS.",
)
CONTROL_REDIRECTS = Fault(
    name="address.control_redirects",
    cure="Facts do not follow redirects: set LAMINAR_CONTROL_URL to the final address, such as the public one.",
)
NO_PROXIES = Fault(
    name="address.no_proxies",
    verdict=Verdict.WARNING,
    cure="All clients seem to be the proxy, and share its limits: add it to LAMINAR_TRUSTED_PROXIES.",
)


def check_addresses(environment: Environment) -> Iterator[Finding]:
    parts = urlsplit(environment.public_url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not (is_near(host) and host):
        yield PLAIN.found(f"{environment.public_url} is not https")
    else:
        yield good(f"the site's address is {environment.public_url}")
    yield from _check_names(environment, host)
    yield from _check_public(environment.public_url)
    yield _check_control(environment.control_url)
    if parts.scheme == "https":
        proxies = ", ".join(str(each) for each in environment.trusted_proxies)
        yield good(f"trusted proxies: {proxies}") if proxies else NO_PROXIES.found("no proxy is trusted")


def _check_names(environment: Environment, host: str) -> Iterator[Finding]:
    if "*" in environment.allowed_hosts:
        yield ANY_HOST.found("LAMINAR_ALLOWED_HOSTS is *")
    elif not any(host == name or (name.startswith(".") and host.endswith(name)) for name in environment.allowed_hosts):
        yield NOT_ALLOWED.found(f"LAMINAR_ALLOWED_HOSTS lacks {host}, the name in LAMINAR_PUBLIC_URL")


def _check_public(url: str) -> Iterator[Finding]:
    try:
        response = httpx.get(f"{url}/help/", timeout=_PATIENCE, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield ELSEWHERE.found(f"{url}: {type(error).__name__}: {error}")
        return
    if response.is_redirect and response.headers.get("location", "").startswith(url):
        yield LOOPS.found(f"{url} redirects to itself")
    elif response.status_code != httpx.codes.OK:
        yield ELSEWHERE.found(f"{url}: {response.status_code}")
    else:
        yield good("the site answers there")


def _check_control(url: str) -> Finding:
    """Posts like a driver; without a token the site responds with 401."""
    try:
        response = httpx.post(url + FACTS, json={}, timeout=_PATIENCE, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return CONTROL.found(f"{url}: {type(error).__name__}: {error}")
    if response.is_redirect:
        return CONTROL_REDIRECTS.found(f"{url} redirects to {response.headers.get('location', 'somewhere')[:120]}")
    if response.status_code != httpx.codes.UNAUTHORIZED:
        return CONTROL.found(f"{url}: {response.status_code} instead of 401, so another server answers there")
    return good(f"nodes report to {url}")
