"""The Rays of a site, for its operator: each once, with its pools, and whether it accepts requests without a token.

Invariant: a request to a Ray carries that Ray's own token, as its pools' jobs do.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from backend.environment import Environment
from backend.jobs.attempts.launcher import SUBMIT_TIMEOUT
from backend.pools.clusters.addresses import RayAddress, TokenMissing, address_of, token_of, url_of
from backend.pools.clusters.dashboard import Dashboard, RayRefused, document
from backend.pools.clusters.probes import RayHost
from backend.pools.models import ResourcePool

_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
_LOOKS_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRay:
    address: RayAddress
    url: str
    pools: tuple[ResourcePool, ...]

    def __str__(self) -> str:
        return str(self.address)


def rays_of(environment: Environment) -> Iterator[SiteRay]:
    """Each Ray of a pool, once; without pools, the site's own."""
    pools = list(ResourcePool.objects.order_by("name"))
    for address in dict.fromkeys(map(address_of, pools)) or [RayAddress()]:
        on_it = tuple(pool for pool in pools if address_of(pool) == address)
        yield SiteRay(address=address, url=url_of(address, environment), pools=on_it)


def dashboard_of(address: RayAddress, environment: Environment) -> Dashboard:
    """Raises `RayRefused` if its token is missing, `RayUnreachable` if the address is invalid."""
    try:
        return Dashboard(url_of(address, environment), token_of(address, environment))
    except TokenMissing as missing:
        raise RayRefused(str(missing)) from missing


def devices_of(hosts: Sequence[RayHost]) -> tuple[int, str]:
    """Suggested number and kind of a pool's devices: accelerators, else one per CPU."""
    gpus = int(sum(host.gpus for host in hosts))
    kinds = sorted({kind for host in hosts for kind in host.kinds})
    if gpus:
        return gpus, " ".join(kinds)[:40] or "gpu"
    return int(sum(host.cpus for host in hosts)), "cpu"


def run_on_head(ray: Dashboard, submission_id: str, entrypoint: str, *, within_s: float) -> str:
    """The log of a small job, once it has ended and was removed from Ray. Raises `LauncherError`."""
    job = f"/api/jobs/{submission_id}"
    request = {"submission_id": submission_id, "entrypoint": entrypoint}
    document(ray.send("POST", "/api/jobs/", json=request, timeout=SUBMIT_TIMEOUT))
    ends_at = time.monotonic() + within_s
    while not (is_over := document(ray.send("GET", job)).get("status") in _OVER):
        if time.monotonic() > ends_at:
            ray.send("POST", f"{job}/stop")
            break
        time.sleep(_LOOKS_EVERY_S)
    log = str(document(ray.send("GET", f"{job}/logs")).get("logs", ""))
    if is_over:
        ray.send("DELETE", job)
    return log


def accepts_unauthenticated(url: str) -> bool:
    """Whether the Jobs API answers without a token."""
    try:
        return Dashboard(url, "").send("GET", "/api/jobs/").status_code == httpx.codes.OK
    except RayRefused:
        return False
