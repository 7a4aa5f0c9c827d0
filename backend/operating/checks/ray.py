"""Checks every Ray of the site: does it answer, only with the token, and does it have the pools' promised devices?"""

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from backend.environment import Environment
from backend.operating.checks.findings import Fault, Finding, Verdict, good
from backend.operating.checks.near import is_near
from backend.operating.ray_cluster import SiteRay, accepts_unauthenticated, dashboard_of, devices_of, rays_of
from backend.pools.clusters.dashboard import Dashboard, RayRefused, RayUnreachable
from backend.pools.clusters.probes import RayHost, find

OURS: Final = "2.60.0"
"""The version in the engine's image and lock."""

UNREACHABLE = Fault(
    name="ray.unreachable",
    cure="Start Ray's head with --dashboard-host=0.0.0.0, and check LAMINAR_RAY_URL, or the address on the pool's "
    "page. Until then its jobs wait.",
)
REFUSED = Fault(
    name="ray.refused",
    cure="Give web, worker and beat the cluster's token: in the file of LAMINAR_RAY_TOKEN_FILE, or for a pool's own "
    "Ray in LAMINAR_RAY_TOKENS_DIR, under the name on the pool's page.",
)
OPEN = Fault(
    name="ray.open",
    cure="Anyone who reaches it can run code there: start all its nodes with RAY_AUTH_MODE=token and the token.",
)
PLAIN = Fault(
    name="ray.plain",
    verdict=Verdict.WARNING,
    cure="An attacker on the network can read the token: use a closed network, or an https:// address in "
    "LAMINAR_RAY_URL or on the pool's page.",
)
OTHER_VERSION = Fault(
    name="ray.other_version",
    verdict=Verdict.WARNING,
    cure=f"Laminar is tested with Ray {OURS}: use its engine image on every node.",
)
NO_DEVICES = Fault(
    name="ray.no_devices",
    cure="Start workers (`docker compose up -d ray-worker`), and check their logs if they do not join.",
)
TOO_FEW = Fault(
    name="ray.too_few_devices",
    cure="Jobs would start and wait for missing devices: bring the nodes back, or lower the capacity of the pool.",
)


def check_ray(environment: Environment) -> Iterator[Finding]:
    """Checks the site's own Ray, and those of pools."""
    for ray in rays_of(environment):
        try:
            yield from _check_ray(ray, dashboard_of(ray.address, environment))
        except RayRefused as error:
            yield REFUSED.found(f"{ray}: {error}")
        except RayUnreachable as error:
            yield UNREACHABLE.found(f"{ray}: {error}")


def _check_ray(ray: SiteRay, dashboard: Dashboard) -> Iterator[Finding]:
    version = dashboard.version()
    text = f"{ray}: Ray {version}"
    yield good(text) if version == OURS else OTHER_VERSION.found(f"{text}; expected {OURS}")
    yield (
        OPEN.found(f"{ray}: its Jobs API answers without a token")
        if accepts_unauthenticated(ray.url)
        else good(f"{ray}: its Jobs API requires the token")
    )
    yield from judge_way(ray.url)
    yield from _check_devices(ray, dashboard.hosts())


def judge_way(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_near(parts.hostname or ""):
        yield PLAIN.found(f"no TLS to {parts.hostname}")


def _check_devices(ray: SiteRay, hosts: Sequence[RayHost]) -> Iterator[Finding]:
    """Compares each pool's devices, counted as the scheduler's probes count."""
    num, kind = devices_of(hosts)
    grows = bool(ray.pools) and all(pool.autoscales for pool in ray.pools)
    if not num and not grows:
        yield NO_DEVICES.found(f"{ray}: {len(hosts)} nodes, and no devices")
        return
    found_of = find(ray.pools, hosts)
    for pool in ray.pools:
        seen = found_of[pool.pk]
        text = f"pool {pool.name}: {seen.devices} devices on {len(seen.hosts)} nodes; {seen.promised} are promised"
        is_short = seen.devices < seen.promised and not pool.autoscales
        yield TOO_FEW.found(text) if is_short else good(text)
    if not ray.pools:
        yield good(f"{ray}: {len(hosts)} nodes with {num} devices ({kind}); no pool is on it")
