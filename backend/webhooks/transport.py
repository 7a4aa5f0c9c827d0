"""One message to one receiver, over the network that `addresses` guards.

Invariants:
- whatever a receiver does, a try is over within `PATIENCE_S`: also when it sends a byte a second;
- nothing of its answer is kept but the status; of the body not a byte is read;
- an outcome is never an exception.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import httpcore

from backend.webhooks.addresses import ForbiddenAddress, GuardedNetwork, checked_url
from backend.webhooks.secret_box import signature_header

PATIENCE_S = 10.0
"""Standard Webhooks asks for 15 to 30 s of a sender; ours shares two workers with everything else."""
MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    delivery_id: str
    endpoint_id: str
    url: str
    message_id: str
    body: str
    secrets_in_use: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`status` is None when there was no answer; then `error` says why."""

    status: int | None
    error: str
    ms: int

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        return self.status == 410


class Courier:
    def __init__(
        self, network: GuardedNetwork, *, allow_loopback: bool, tls: ssl.SSLContext | None = None,
        patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._network, self._allow_loopback = network, allow_loopback
        self._tls, self._patience_s, self._clock = tls, patience_s, clock

    async def carry(self, message: Message, *, at: datetime) -> Outcome:
        started = self._clock()
        status, error = None, ""
        try:
            checked_url(message.url, allow_loopback=self._allow_loopback)
            async with asyncio.timeout(self._patience_s), self._answer(message, at) as answer:
                status = answer.status
        except TimeoutError:
            error = f"no answer within {self._patience_s:g} s"
        except ForbiddenAddress as refusal:
            error = str(refusal)
        except (httpcore.ConnectError, OSError) as failure:
            error = "the certificate was refused" if "CERTIFICATE" in str(failure).upper() else "could not connect"
        except Exception as failure:  # noqa: BLE001  # a receiver may break its protocol in any way; it is its outcome
            error = f"the receiver broke the protocol ({type(failure).__name__})"
        if status is not None and 300 <= status < 400:
            error = "redirects are not followed"
        return Outcome(status=status, error=error, ms=round(1_000 * (self._clock() - started)))

    @asynccontextmanager
    async def _answer(self, message: Message, at: datetime) -> AsyncIterator[httpcore.Response]:
        timestamp = int(at.timestamp())
        signature = signature_header(message.message_id, timestamp, message.body, secrets_in_use=message.secrets_in_use)
        headers: dict[bytes | str, bytes | str] = {
            "Host": _host(message.url),
            "Content-Type": "application/json",
            "User-Agent": "Laminar-Webhooks/1",
            "Connection": "close",
            "webhook-id": message.message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature,
        }
        pool = httpcore.AsyncConnectionPool(network_backend=self._network, ssl_context=self._tls, max_connections=1)
        async with pool, pool.stream("POST", message.url, headers=headers, content=message.body.encode()) as answer:
            yield answer


def _host(url: str) -> str:
    host = httpcore.URL(url).host.decode()
    port = httpcore.URL(url).port
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"
