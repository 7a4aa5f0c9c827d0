"""Starting, asking after and stopping attempts on a Ray cluster, through its Jobs API and without importing Ray.

Invariants:
- the submission id is the attempt's, so launching twice starts once;
- an order travels as a file in a package of its own, because it holds a token: environment variables and entrypoints
  are shown to everyone who may list Ray's jobs;
- an answer that says neither yes nor no is settled by asking for that id; what stays unclear raises `RayUnreachable`,
  which is never taken for a word about the job;
- the driver runs on a host that the pool's selector chooses, or on the head of a Ray that gets hosts by itself;
- in a pool of CPUs neither the driver nor what it starts sees a GPU, which Ray 2.60 shows to whoever asked for none;
- a Ray that does not answer is left alone for as long as it made us wait: at most half of a process' time goes to it;
- which interpreter runs the driver is the cluster's business: LAMINAR_RAY_PYTHON in the environment of Ray's nodes,
  else the `python` on their PATH. Their PYTHONPATH, or an installed package, must offer `engine`.
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
    RayUnreachable,
    document,
    hosts_in,
    unclear,
)
from backend.pools.clusters.looks import RayHost
from backend.pools.models import ResourcePool
from engine.spec.control import AttemptOrder, PoolTerms

log = logging.getLogger(__name__)

ENTRYPOINT = 'exec "${LAMINAR_RAY_PYTHON:-python}" -m engine.live.run.driver'
"""`exec`, so that Ray's signal reaches the driver and not a shell."""
ORDER_FILE = "order.json"

SUBMIT_TIMEOUT = httpx.Timeout(25.0, connect=2.0)  # the first submission after Ray's start took 1.3 s; a busy node more


class SubmissionStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    MISSING = "MISSING"
    """Ray answers and does not know the id: never submitted, or Ray lost its memory in a restart."""

    @property
    def is_live(self) -> bool:
        return self in {SubmissionStatus.PENDING, SubmissionStatus.RUNNING}


class Launcher(Protocol):
    """One Ray, as attempts need it. All of these raise `LauncherError`, and none waits for a job."""

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        """Returns when the engine has the submission, from this call or from an earlier one."""

    def status(self, submission_id: str) -> SubmissionStatus: ...

    def stop(self, submission_id: str) -> None:
        """Asks; the end is seen in `status`. What is unknown or over stays so."""

    def live_submissions(self) -> list[str]: ...

    def log_tail(self, submission_id: str, max_chars: int) -> str: ...

    def hosts(self) -> list[RayHost]:
        """Those that are alive."""


Rays = Callable[[ResourcePool], Launcher]
"""The Ray of a pool. Raises `LauncherError` where its token is missing."""


def ray_of(pool: ResourcePool) -> "RayLauncher":
    address = address_of(pool)
    try:
        return _launcher(url_of(address), token_of(address))
    except TokenMissing as missing:
        raise RayRefused(str(missing)) from missing


def read_token(path: Path) -> str:
    """Of the site's own Ray. Raises `RayRefused`."""
    try:
        return token_in(path, "LAMINAR_RAY_TOKEN_FILE")
    except TokenMissing as missing:
        raise RayRefused(str(missing)) from missing


@lru_cache(maxsize=64)
def _launcher(url: str, token: str) -> "RayLauncher":
    """The same one for all of a Ray's pools, until its token is another."""
    return RayLauncher(url, token)


class RayLauncher:
    def __init__(
        self, url: str, token: str, *, entrypoint: str = ENTRYPOINT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entrypoint, self._clock = entrypoint, clock
        self._left_alone_until = clock()
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
            "runtime_env": {"working_dir": f"gcs://{name}"} | _hidden_gpus(order.pool),
            "metadata": {"laminar_job": order.job, "laminar_attempt": str(order.attempt)},
            **_where(order.pool),
        }
        try:
            answer = self._ask("POST", "/api/jobs/", json=request, timeout=SUBMIT_TIMEOUT)
        except RayUnreachable:
            if self._has(submission_id):
                return
            raise
        # A repeated id is answered 500 with a traceback, and so is many another mishap.
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
        submitted = [row for row in listed if row["submission_id"]]
        return [row["submission_id"] for row in submitted if _status_of(row).is_live]

    def log_tail(self, submission_id: str, max_chars: int) -> str:
        answer = self._ask("GET", f"/api/jobs/{submission_id}/logs")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ""
        logs: str = document(answer)["logs"]
        return logs[-max_chars:]

    def hosts(self) -> list[RayHost]:
        return hosts_in(self._ask("GET", "/api/v0/nodes", params={"limit": MOST_HOSTS}))

    def _has(self, submission_id: str) -> bool:
        """Asked at once, also of a Ray that has just not answered something else."""
        answer = self._send("GET", f"/api/jobs/{submission_id}")
        return self._status(answer) is not SubmissionStatus.MISSING

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        left_s = self._left_alone_until - self._clock()
        if left_s > 0:
            raise RayUnreachable(f"{method} {path}: it has just not answered, and is left alone for {left_s:.0f} s")
        return self._send(method, path, **request)

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        began_at = self._clock()
        try:
            return self._ray.send(method, path, **request)
        except RayUnreachable:
            now = self._clock()
            self._left_alone_until = now + (now - began_at)
            raise


def order_package(order: AttemptOrder) -> bytes:
    """The same order makes the same bytes, so that a repeated upload is the same package."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo(ORDER_FILE), order.model_dump_json())  # mode 600, dated 1980
    return archive.getvalue()


def _where(pool: PoolTerms) -> dict[str, Any]:
    """Without labels the driver is on Ray's head, as it has always been; and where hosts have yet to come, since a
    driver that waits for one asks for nothing that would make it come."""
    return {"entrypoint_label_selector": pool.labels} if pool.labels and not pool.autoscales else {}


def _hidden_gpus(pool: PoolTerms) -> dict[str, Any]:
    return {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}} if pool.device == "cpu" else {}


def _status_of(row: dict[str, Any]) -> SubmissionStatus:
    try:
        return SubmissionStatus(row["status"])
    except (KeyError, TypeError, ValueError) as error:
        raise RayUnreachable(f"not a status of Ray's: {str(row)[:200]}") from error
