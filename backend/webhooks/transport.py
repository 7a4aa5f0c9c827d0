"""One message to one receiver, over the network that `addresses` guards.

    connect ──▶ request ──▶ looks, LOOK_EVERY_S apart ──▶ the answer | PATIENCE_S of looks | LONGEST_TRY_S of wall time
                            each counts as one interval,                no answer            nobody's fault
                            however late this process is

Invariants:
- whatever a receiver does, a try is over within `PATIENCE_S`: also when it sends a byte a second;
- a receiver is charged for no time in which this process did not run, and an answer that lies in the socket when the
  patience ends is read;
- a try that this process was too starved to finish is over within `LONGEST_TRY_S` and blames nobody;
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
LOOK_EVERY_S = 0.25
LONGEST_TRY_S = 30.0  # of wall time: with TAKES_ON_FOR_S of the sender below the time limit of a background task
# Far more than it takes from a readable socket to a parsed head, and few enough for a receiver that drips.
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
    """`status` is None when there was no answer; then `error` says why."""

    status: int | None
    error: str
    ms: int
    """Of the receiver's time."""
    is_ours: bool = False
    """This process was starved: the receiver is not blamed."""

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
            error = "this server was too busy for an answer" if is_ours else f"no answer within {self._patience_s:g} s"
        except ForbiddenAddress as refusal:
            error = str(refusal)
        except (httpcore.ConnectError, OSError) as failure:
            error = "the certificate was refused" if "CERTIFICATE" in str(failure).upper() else "could not connect"
        except Exception as failure:  # noqa: BLE001  # a receiver may break its protocol in any way; it is its outcome
            error = f"the receiver broke the protocol ({type(failure).__name__})"
        if status is not None and 300 <= status < 400:
            error = "redirects are not followed"
        return Outcome(status=status, error=error, ms=round(1_000 * took_s), is_ours=is_ours)

    async def _watch(self, exchange: "asyncio.Task[int]") -> tuple[float, bool]:
        """Until the exchange is over or cancelled: the receiver's time, and whether this process was too starved."""
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
        """The status of the answer."""
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
