"""What every Ray actor of the pipeline is: a body in a loop, peers to send to, and an outbox for the driver.

Invariants:
- all calls are one-way: `deliver` enqueues and returns nothing, `collect` is the driver's own poll;
- an actor restarts never by itself: what it knew would be gone and nobody told. The manager decides.
"""

import logging
from abc import abstractmethod
from typing import Any

import ray

from engine.live.body import Body, Loop, Upward
from engine.pipeline.messages import Address, Message

log = logging.getLogger(__name__)

# One thread each: messages keep their order, and a waiting poll never holds up a delivery.
CONCURRENCY_GROUPS = {"inbox": 1, "outbox": 1}


class BodyActor:
    def __init__(self, *, name: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        self._name = name
        self._peers: dict[Address, Any] = {}
        self._loop = Loop(name=name, build=self.build, send=self._send)

    @abstractmethod
    def build(self) -> Body:
        """On the loop's thread; whatever is heavy is imported and loaded here."""

    @ray.method(concurrency_group="inbox", num_returns=0)
    def deliver(self, message: Message) -> None:
        self._loop.deliver(message)

    @ray.method(concurrency_group="inbox", num_returns=0)
    def connect(self, peers: dict[Address, Any]) -> None:
        self._peers = {**self._peers, **peers}

    @ray.method(concurrency_group="outbox")
    def collect(self, timeout_s: float) -> list[tuple[Address, Upward]]:
        return self._loop.outbox.collect(timeout_s)

    def _send(self, to: Address, message: Message) -> None:
        peer = self._peers.get(to)
        if peer is None:
            log.info("body=%s dropped=%s to=%s, not connected yet", self._name, type(message).__name__, to)
            return
        peer.deliver.remote(message)
