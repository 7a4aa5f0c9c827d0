"""Sends one message to one receiver, over the network that `addresses` guards.

    connect ──▶ request ──▶ polls, LOOK_EVERY_S apart ──▶ response | PATIENCE_S of polls | LONGEST_TRY_S of wall time
                            each counts as one interval,             timeout               server overloaded:
                            however late this process is                                   receiver not blamed

Invariants:
- an attempt ends within `PATIENCE_S` whatever the receiver does, even if it sends a byte per second;
- time in which this process did not run is not charged to the receiver, and a response already in the socket at the
  timeout is read;
- an attempt that this process was too starved to finish ends within `LONGEST_TRY_S` and is not the receiver's failure;
- only the status of the response is kept; its body is never read;
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
"""Standard Webhooks recommends 15 to 30 s; this sender shares two workers with all other background tasks."""
LOOK_EVERY_S = 0.25
LONGEST_TRY_S = 30.0  # wall time; plus the sender's TAKES_ON_FOR_S, below the time limit of a background task
# Event loop turns: far more than from a readable socket to a parsed head, too few for a receiver that drips bytes.
LAST_TURNS = 100
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
    """`status` is None without a response; `error` then holds the reason."""

    status: int | None
    error: str
    ms: int
    """Time charged to the receiver."""
    is_ours: bool = False
    """This process was starved; not the receiver's failure."""

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
        exchange = asyncio.create_task(self._exchange(message, at))
        took_s, is_ours = await self._watch(exchange)
        status, error = None, ""
        try:
            status = await exchange
        except asyncio.CancelledError:
            error = "server overloaded, will retry" if is_ours else f"no response within {self._patience_s:g} s"
        except ForbiddenAddress as refusal:
            error = str(refusal)
        except (httpcore.ConnectError, OSError) as failure:
            error = "TLS certificate not valid" if "CERTIFICATE" in str(failure).upper() else "could not connect"
        except Exception as failure:  # noqa: BLE001  # a receiver may break the protocol in any way
            error = f"invalid HTTP response ({type(failure).__name__})"
        if status is not None and 300 <= status < 400:
            error = "redirects are not followed"
        return Outcome(status=status, error=error, ms=round(1_000 * took_s), is_ours=is_ours)

    async def _watch(self, exchange: "asyncio.Task[int]") -> tuple[float, bool]:
        """Waits until the exchange ends or is cancelled; returns the receiver's time and whether we were starved."""
        began = looked = self._clock()
        took_s = 0.0
        while not exchange.done() and took_s < self._patience_s and looked < began + LONGEST_TRY_S:
            await asyncio.wait({exchange}, timeout=min(LOOK_EVERY_S, self._patience_s - took_s))
            now = self._clock()
            took_s, looked = took_s + min(now - looked, LOOK_EVERY_S), now
        for _ in range(LAST_TURNS):
            if exchange.done():
                return took_s, False
            await asyncio.sleep(0)
        exchange.cancel()
        await asyncio.wait({exchange})
        return took_s, exchange.cancelled() and took_s < self._patience_s

    async def _exchange(self, message: Message, at: datetime) -> int:
        """Returns the response's status."""
        checked_url(message.url, allow_loopback=self._allow_loopback)
        async with self._answer(message, at) as answer:
            return answer.status

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
