"""A client of Ray's dashboard over HTTP (version, hosts, further requests), without importing Ray.

Invariants:
- every request ends within seconds, and no proxy of the environment sees the cluster's token;
- the owner of the head node writes the responses: they are read up to `MOST_ANSWER_BYTES` and for `ANSWER_WITHIN_S`,
  however slowly they come;
- an unclear response raises `RayUnreachable`, a refusal `RayRefused`: results are never guessed.
"""

import time
from typing import Any, Final

import httpx

from backend.pools.clusters.probes import RayHost

ANSWER_TIMEOUT: Final = httpx.Timeout(10.0, connect=2.0)
ANSWER_WITHIN_S: Final = 30.0
"""More than any single wait above and in `SUBMIT_TIMEOUT`, less than a background task may take."""
MOST_ANSWER_BYTES: Final = 64 * 2**20  # 10,000 hosts are 20 MB; Ray sends logs whole
MOST_HOSTS: Final = 10_000  # of one response of Ray
_ACCELERATOR: Final = "accelerator_type:"
_REFUSALS: Final = {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.BAD_REQUEST}


class LauncherError(RuntimeError):
    """The engine was unreachable or refused the request."""

    retryable = True


class RayUnreachable(LauncherError):
    """Ray gave no clear response. It may be down, restarting, or unreachable from here."""


class RayTooLong(RayUnreachable):
    """Ray's response is longer than any that is read."""


class RayRefused(LauncherError):
    """Ray refused the request: the token is wrong, or the request is invalid."""

    retryable = False


class Dashboard:
    def __init__(self, url: str, token: str) -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A new connection costs a millisecond; a kept one breaks when Ray restarts.
        limits = httpx.Limits(max_keepalive_connections=0)
        try:
            self._client = httpx.Client(
                base_url=url, headers=headers, timeout=ANSWER_TIMEOUT, limits=limits, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise RayUnreachable(f"{url}: {error}") from error

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        ends_at = time.monotonic() + ANSWER_WITHIN_S
        try:
            with self._client.stream(method, path, **request) as streamed:
                response = _read_bounded(streamed, ends_at)
        except httpx.HTTPError as error:
            raise RayUnreachable(f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.status_code in _REFUSALS:
            raise RayRefused(f"{method} {path}: {response.status_code} {_last_line(response)}")
        return response

    def version(self) -> str:
        reply = document(self.send("GET", "/api/version"))
        if not isinstance(reply, dict):
            raise RayUnreachable(f"not Ray's version: {str(reply)[:200]}")
        return str(reply.get("ray_version", ""))

    def hosts(self) -> list[RayHost]:
        """Hosts that are alive."""
        return hosts_in(self.send("GET", "/api/v0/nodes", params={"limit": MOST_HOSTS}))


def _read_bounded(streamed: httpx.Response, ends_at: float) -> httpx.Response:
    """Raises `RayTooLong` or `RayUnreachable`."""
    request, content = streamed.request, bytearray()
    for piece in streamed.iter_bytes():
        content += piece
        if len(content) > MOST_ANSWER_BYTES:
            raise RayTooLong(f"{request.method} {request.url.path}: more than {MOST_ANSWER_BYTES:,} bytes")
        if time.monotonic() > ends_at:
            raise RayUnreachable(f"{request.method} {request.url.path}: no end within {ANSWER_WITHIN_S:.0f} s")
    return httpx.Response(streamed.status_code, content=bytes(content), request=request)


def hosts_in(answer: httpx.Response) -> list[RayHost]:
    listed = document(answer)
    try:
        alive = [row for row in listed["data"]["result"]["result"] if row["state"] == "ALIVE"]
        return [_host_of(row) for row in alive]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RayUnreachable(f"not Ray's list of nodes: {str(listed)[:200]}") from error


def document(answer: httpx.Response) -> Any:
    if answer.status_code != httpx.codes.OK:
        raise unclear(answer)
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise RayUnreachable(f"not a response of Ray: {error}") from error


def unclear(answer: httpx.Response) -> RayUnreachable:
    return RayUnreachable(f"{answer.request.method} {answer.url.path}: {answer.status_code} {_last_line(answer)}")


def _host_of(row: dict[str, Any]) -> RayHost:
    has = row["resources_total"] or {}
    return RayHost(
        id=str(row["node_id"]),
        name=str(row.get("node_name") or row["node_ip"]),
        labels={str(label): str(value) for label, value in (row.get("labels") or {}).items()},
        cpus=float(has.get("CPU", 0)),
        gpus=float(has.get("GPU", 0)),
        kinds=tuple(sorted(name.removeprefix(_ACCELERATOR) for name in has if name.startswith(_ACCELERATOR))),
    )


def _last_line(answer: httpx.Response) -> str:
    """Of a traceback, the line with the error."""
    return (answer.text.strip().splitlines() or [""])[-1][:300]
