"""Starts, polls and stops attempts on a Ray cluster, through its Jobs API and without importing Ray.

Invariants:
- the submission id is the attempt's, so launching twice starts once;
- an order travels as a file in a package of its own, because it holds a token: environment variables and entrypoints
  are visible to everyone who may list Ray's jobs;
- an ambiguous response is resolved by querying the id; if that fails too, `RayUnreachable` is raised, which implies
  nothing about the job;
- the driver runs on a host that the pool's selector matches, or on the head node of an autoscaling Ray;
- in a CPU pool neither the driver nor its children see a GPU, which Ray 2.60 exposes to processes that requested none;
- after a timeout Ray gets no request for as long as the timeout took: at most half of a process' time waits for it;
- the cluster chooses the driver's interpreter: LAMINAR_RAY_PYTHON in the environment of Ray's nodes, otherwise the
  `python` on their PATH. Their PYTHONPATH, or an installed package, must provide `engine`.
"""

import hashlib
import io
import logging
import time
import zipfile
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import httpx

from backend.pools.clusters.addresses import TokenMissing, address_of, token_in, token_of, url_of
from backend.pools.clusters.dashboard import (
    MOST_HOSTS,
    Dashboard,
    RayRefused,
    RayTooLong,
    RayUnreachable,
    document,
    hosts_in,
    unclear,
)
from backend.pools.clusters.probes import RayHost
from backend.pools.models import ResourcePool
from engine.spec.control import AttemptOrder, PoolTerms

log = logging.getLogger(__name__)

ENTRYPOINT = 'exec "${LAMINAR_RAY_PYTHON:-python}" -m engine.live.run.driver'
"""`exec`, so that Ray's signal reaches the driver and not a shell."""
ORDER_FILE = "order.json"

SUBMIT_TIMEOUT = httpx.Timeout(25.0, connect=2.0)  # the first submission to a new Ray took 1.3 s; more on a busy node


class SubmissionStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    MISSING = "MISSING"
    """Ray responds and does not know the id: never submitted, or forgotten in a restart of Ray."""

    @property
    def is_live(self) -> bool:
        return self in {SubmissionStatus.PENDING, SubmissionStatus.RUNNING}


class Launcher(Protocol):
    """One Ray, as attempts need it. All methods raise `LauncherError`; none waits for a job."""

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        """Returns once the engine has the submission, from this call or an earlier one."""

    def status(self, submission_id: str) -> SubmissionStatus: ...

    def stop(self, submission_id: str) -> None:
        """Requests the stop; `status` shows the end. No-op for an unknown or ended submission."""

    def live_submissions(self) -> list[str]: ...

    def log_tail(self, submission_id: str, max_chars: int) -> str: ...

    def hosts(self) -> list[RayHost]:
        """Hosts that are alive."""


Rays = Callable[[ResourcePool], Launcher]
"""Maps a pool to its Ray. Raises `LauncherError` if its token is missing."""


def ray_of(pool: ResourcePool) -> "RayLauncher":
    address = address_of(pool)
    try:
        return _launcher(url_of(address), token_of(address))
    except TokenMissing as missing:
        raise RayRefused(str(missing)) from missing


def read_token(path: Path) -> str:
    """Reads the token of the site's own Ray. Raises `RayRefused`."""
    try:
        return token_in(path, "LAMINAR_RAY_TOKEN_FILE")
    except TokenMissing as missing:
        raise RayRefused(str(missing)) from missing


@lru_cache(maxsize=64)
def _launcher(url: str, token: str) -> "RayLauncher":
    """One launcher for all pools of a Ray, replaced when its token changes."""
    return RayLauncher(url, token)


class RayLauncher:
    def __init__(
        self, url: str, token: str, *, entrypoint: str = ENTRYPOINT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entrypoint, self._clock = entrypoint, clock
        self._paused_until = clock()
        self._ray = Dashboard(url, token)

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        package = order_package(order)
        name = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        uploaded = self._ask("PUT", f"/api/packages/gcs/{name}", content=package)
        if uploaded.status_code != httpx.codes.OK:
            raise unclear(uploaded)
        request = {
            "submission_id": submission_id,
            "entrypoint": self._entrypoint,
            "runtime_env": {"working_dir": f"gcs://{name}"} | _hide_gpus(order.pool),
            "metadata": {"laminar_job": order.job, "laminar_attempt": str(order.attempt)},
            **_select_hosts(order.pool),
        }
        try:
            answer = self._ask("POST", "/api/jobs/", json=request, timeout=SUBMIT_TIMEOUT)
        except RayUnreachable:
            if self._has(submission_id):
                return
            raise
        # Ray answers a repeated id with 500 and a traceback, like many other errors.
        if answer.status_code != httpx.codes.OK and not self._has(submission_id):
            raise unclear(answer)

    def status(self, submission_id: str) -> SubmissionStatus:
        return self._status(self._ask("GET", f"/api/jobs/{submission_id}"))

    @staticmethod
    def _status(answer: httpx.Response) -> SubmissionStatus:
        if answer.status_code == httpx.codes.NOT_FOUND:
            return SubmissionStatus.MISSING
        return _status_of(document(answer))

    def stop(self, submission_id: str) -> None:
        answer = self._ask("POST", f"/api/jobs/{submission_id}/stop")
        if answer.status_code not in {httpx.codes.OK, httpx.codes.NOT_FOUND}:
            raise unclear(answer)

    def live_submissions(self) -> list[str]:
        listed = document(self._ask("GET", "/api/jobs/"))
        try:
            submitted = [row for row in listed if row["submission_id"]]
            return [str(row["submission_id"]) for row in submitted if _status_of(row).is_live]
        except (KeyError, TypeError) as error:
            raise RayUnreachable(f"not Ray's list of jobs: {str(listed)[:200]}") from error

    def log_tail(self, submission_id: str, max_chars: int) -> str:
        """Empty also for a log that is too long to be read: Ray sends it whole."""
        try:
            answer = self._ask("GET", f"/api/jobs/{submission_id}/logs")
        except RayTooLong:
            return ""
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ""
        reply = document(answer)
        if not isinstance(reply, dict) or not isinstance(reply.get("logs"), str):
            raise RayUnreachable(f"not a log of Ray: {str(reply)[:200]}")
        logs: str = reply["logs"]
        return logs[-max_chars:]

    def hosts(self) -> list[RayHost]:
        return hosts_in(self._ask("GET", "/api/v0/nodes", params={"limit": MOST_HOSTS}))

    def _has(self, submission_id: str) -> bool:
        """Skips the pause: also queries a Ray that has just timed out."""
        answer = self._send("GET", f"/api/jobs/{submission_id}")
        return self._status(answer) is not SubmissionStatus.MISSING

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        left_s = self._paused_until - self._clock()
        if left_s > 0:
            raise RayUnreachable(f"{method} {path}: Ray timed out just now; next request in {left_s:.0f} s")
        return self._send(method, path, **request)

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        began_at = self._clock()
        try:
            return self._ray.send(method, path, **request)
        except RayTooLong:
            raise  # it answers
        except RayUnreachable:
            now = self._clock()
            self._paused_until = now + (now - began_at)
            raise


def order_package(order: AttemptOrder) -> bytes:
    """Equal orders give equal bytes, so that a repeated upload is the same package."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo(ORDER_FILE), order.model_dump_json())  # mode 600, dated 1980
    return archive.getvalue()


def _select_hosts(pool: PoolTerms) -> dict[str, Any]:
    """Without labels the driver runs on Ray's head node. So it does in an autoscaling pool: a driver that waits for a
    host requests nothing that would make the cluster add one."""
    return {"entrypoint_label_selector": pool.labels} if pool.labels and not pool.autoscales else {}


def _hide_gpus(pool: PoolTerms) -> dict[str, Any]:
    return {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}} if pool.device == "cpu" else {}


def _status_of(row: dict[str, Any]) -> SubmissionStatus:
    try:
        return SubmissionStatus(row["status"])
    except (KeyError, TypeError, ValueError) as error:
        raise RayUnreachable(f"unknown Ray job status: {str(row)[:200]}") from error
