"""The HTTP calls to the control plane, and the meaning of its responses.

    GET  {control_url}/internal/engine/vocabulary   → Vocabulary; 404: announces none
    POST {control_url}/internal/engine/facts        FactBatch → FactAck
    POST {control_url}/internal/engine/heartbeat    Heartbeat → HeartbeatReply
    errors: problem+json with `code`; 409 stale_fence ends the attempt, 409 gap has the last stored fact

Invariants:
- an unreadable response counts as none: the call is retried;
- the token is sent in the Authorization header only, and to no other address: redirects are not followed.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
from pydantic import ValidationError

from engine.spec.control import FactAck, Heartbeat, HeartbeatReply, Vocabulary

# A database during a failover responds late rather than never; after this time a retry is better.
TIMEOUT_S: Final = 10.0

Answer = TypeVar("Answer", FactAck, HeartbeatReply, Vocabulary)


class Unreachable(Exception):
    """The control plane gave no usable response; the call is retried."""

    retryable = True


class StaleFence(Exception):
    """A newer attempt has taken over: stop at once."""

    retryable = False


class Refused(Exception):
    """The control plane will never accept this."""

    retryable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    acked: int


class ControlPlane:
    def __init__(self, control_url: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=control_url.rstrip("/") + "/internal/engine/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=TIMEOUT_S,
            follow_redirects=False,
            trust_env=False,  # proxies from the host's environment must not see the token
        )

    def vocabulary(self) -> list[str] | None:
        """The names that the control plane understands in facts; None: it announces none."""
        response = self._call("GET", "vocabulary")
        return None if response.status_code == httpx.codes.NOT_FOUND else self._parse(Vocabulary, response).names

    def send_facts(self, *, attempt: int, fence: int, lines: list[bytes]) -> FactAck | Gap:
        """`lines`: facts as JSON from the spool, sent without parsing them again."""
        head = f'{{"attempt":{attempt},"fence":{fence},"facts":['.encode()
        response = self._call("POST", "facts", head + b",".join(lines) + b"]}")
        if response.status_code == httpx.codes.CONFLICT:
            return self._parse_gap(response)
        return self._parse(FactAck, response)

    def beat(self, heartbeat: Heartbeat) -> HeartbeatReply:
        response = self._call("POST", "heartbeat", heartbeat.model_dump_json().encode())
        if response.status_code == httpx.codes.CONFLICT:
            raise Unreachable(f"409 {problem_of(response)}")
        return self._parse(HeartbeatReply, response)

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, path: str, content: bytes = b"") -> httpx.Response:
        try:
            response = self._client.request(method, path, content=content, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if response.status_code == httpx.codes.CONFLICT and problem_of(response).get("code") == "stale_fence":
            raise StaleFence(str(problem_of(response).get("detail", "")))
        if response.status_code in (httpx.codes.REQUEST_ENTITY_TOO_LARGE, httpx.codes.UNPROCESSABLE_ENTITY):
            raise Refused(f"{path} returned {response.status_code}: {response.text[:2_000]}")
        return response

    def _parse_gap(self, response: httpx.Response) -> Gap:
        problem = problem_of(response)
        acked = problem.get("acked")
        if problem.get("code") != "gap" or not isinstance(acked, int) or acked < 0:
            raise Unreachable(f"409 {problem}")
        return Gap(acked=acked)

    def _parse(self, kind: type[Answer], response: httpx.Response) -> Answer:
        if response.is_redirect:
            elsewhere = response.headers.get("Location", "")[:200]
            raise Unreachable(
                f"{response.status_code}, a redirect to {elsewhere}, which is not followed: "
                f"LAMINAR_CONTROL_URL must be an address without a redirect, got {self._client.base_url}"
            )
        if response.status_code != httpx.codes.OK:
            raise Unreachable(f"{response.status_code}: {response.text[:500]}")
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise Unreachable(f"invalid response, expected a {kind.__name__}: {error}") from error


def problem_of(response: httpx.Response) -> dict[str, Any]:
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
