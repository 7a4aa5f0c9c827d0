"""Starting, asking after and stopping attempts on a Ray cluster, through its Jobs API and without importing Ray.

Invariants:
- the submission id is the attempt's, so launching twice starts once;
- an order travels as a file in a package of its own, because it holds a token: environment variables and entrypoints
  are shown to everyone who may list Ray's jobs;
- an answer that says neither yes nor no is settled by asking for that id; what stays unclear raises `RayUnreachable`,
  which is never taken for a word about the job;
- which interpreter runs the driver is the cluster's business: LAMINAR_RAY_PYTHON in the environment of Ray's nodes,
  else the `python` on their PATH. Their PYTHONPATH, or an installed package, must offer `engine`.
"""

import hashlib
import io
import logging
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
from django.conf import settings

from engine.spec.control import AttemptOrder

log = logging.getLogger(__name__)

ENTRYPOINT = 'exec "${LAMINAR_RAY_PYTHON:-python}" -m engine.live.run.driver'
"""`exec`, so that Ray's signal reaches the driver and not a shell."""
ORDER_FILE = "order.json"

ANSWER_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
SUBMIT_TIMEOUT = httpx.Timeout(25.0, connect=2.0)  # the first submission after Ray's start took 1.3 s; a busy node more


class LauncherError(RuntimeError):
    """The engine could not be reached or would not answer."""

    retryable = True


class RayUnreachable(LauncherError):
    """Ray gave no clear answer. It may be down, restarting, or unreachable from here."""


class RayRefused(LauncherError):
    """Ray understood and said no: a wrong token, or a request that it never takes."""

    retryable = False


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
    """The engine, as attempts need it. All of these raise `LauncherError`, and none waits for a job."""

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        """Returns when the engine has the submission, from this call or from an earlier one."""

    def status(self, submission_id: str) -> SubmissionStatus: ...

    def stop(self, submission_id: str) -> None:
        """Asks; the end is seen in `status`. What is unknown or over stays so."""

    def live_submissions(self) -> list[str]: ...

    def log_tail(self, submission_id: str, max_chars: int) -> str: ...


class RayLauncher:
    def __init__(self, url: str, token: str, *, entrypoint: str = ENTRYPOINT) -> None:
        self._entrypoint = entrypoint
        headers = {"Authorization": f"Bearer {token}"}
        # A new connection costs a millisecond; a kept one breaks when Ray restarts.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(
            base_url=url,
            headers=headers,
            timeout=ANSWER_TIMEOUT,
            limits=limits,
            trust_env=False,  # a proxy for the world outside must not see the cluster's token
        )

    @classmethod
    def from_settings(cls) -> Self:
        environment = settings.ENVIRONMENT
        return cls(environment.ray_url, read_token(environment.ray_token_file))

    def launch(self, order: AttemptOrder, submission_id: str) -> None:
        package = order_package(order)
        name = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        uploaded = self._ask("PUT", f"/api/packages/gcs/{name}", content=package)
        if uploaded.status_code != httpx.codes.OK:
            raise _unclear(uploaded)
        request = {
            "submission_id": submission_id,
            "entrypoint": self._entrypoint,
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": {"laminar_job": order.job, "laminar_attempt": str(order.attempt)},
        }
        try:
            answer = self._ask("POST", "/api/jobs/", json=request, timeout=SUBMIT_TIMEOUT)
        except RayUnreachable:
            if self._has(submission_id):
                return
            raise
        # A repeated id is answered 500 with a traceback, and so is many another mishap.
        if answer.status_code != httpx.codes.OK and not self._has(submission_id):
            raise _unclear(answer)

    def status(self, submission_id: str) -> SubmissionStatus:
        answer = self._ask("GET", f"/api/jobs/{submission_id}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return SubmissionStatus.MISSING
        return _status_of(_document(answer))

    def stop(self, submission_id: str) -> None:
        answer = self._ask("POST", f"/api/jobs/{submission_id}/stop")
        if answer.status_code not in {httpx.codes.OK, httpx.codes.NOT_FOUND}:
            raise _unclear(answer)

    def live_submissions(self) -> list[str]:
        listed = _document(self._ask("GET", "/api/jobs/"))
        submitted = [row for row in listed if row["submission_id"]]
        return [row["submission_id"] for row in submitted if _status_of(row).is_live]

    def log_tail(self, submission_id: str, max_chars: int) -> str:
        answer = self._ask("GET", f"/api/jobs/{submission_id}/logs")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return ""
        logs: str = _document(answer)["logs"]
        return logs[-max_chars:]

    def _has(self, submission_id: str) -> bool:
        return self.status(submission_id) is not SubmissionStatus.MISSING

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise RayUnreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.BAD_REQUEST}:
            raise RayRefused(f"{method} {path}: {answer.status_code} {_last_line(answer)}")
        return answer


def order_package(order: AttemptOrder) -> bytes:
    """The same order makes the same bytes, so that a repeated upload is the same package."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo(ORDER_FILE), order.document())  # mode 600, dated 1980
    return archive.getvalue()


def read_token(path: Path) -> str:
    """Files written by hand end with a newline, which no header may hold."""
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise RayRefused(f"LAMINAR_RAY_TOKEN_FILE cannot be read: {error}") from error
    if not token:
        raise RayRefused(f"LAMINAR_RAY_TOKEN_FILE is empty: {path}")
    return token


def _document(answer: httpx.Response) -> Any:
    if answer.status_code != httpx.codes.OK:
        raise _unclear(answer)
    try:
        return answer.json()
    except ValueError as error:
        raise RayUnreachable(f"not an answer of Ray's: {error}") from error


def _status_of(row: dict[str, Any]) -> SubmissionStatus:
    try:
        return SubmissionStatus(row["status"])
    except (KeyError, TypeError, ValueError) as error:
        raise RayUnreachable(f"not a status of Ray's: {str(row)[:200]}") from error


def _unclear(answer: httpx.Response) -> RayUnreachable:
    return RayUnreachable(f"{answer.request.method} {answer.url.path}: {answer.status_code} {_last_line(answer)}")


def _last_line(answer: httpx.Response) -> str:
    """Of a traceback, the line that says something."""
    return (answer.text.strip().splitlines() or [""])[-1][:300]
