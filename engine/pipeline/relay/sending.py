"""Chunks that other relays have requested and not been sent yet.

Invariants:
- a chunk is sent once for each request;
- a chunk is sent only when it has arrived and its hash matches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.pipeline.effects import ForwardChunk
from engine.pipeline.messages.to_relay import ChunksWanted
from engine.policy.lineage import WeightsId
from engine.weights.port import BufferId, WeightManifest

# A relay that took no chunk and made no request in this time is gone; its version must not be kept forever.
FORGET_AFTER_S: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Order:
    reach: object
    knows_hashes: bool
    missing: dict[BufferId, set[int]]
    touched_at: float


class Sending:
    def __init__(self) -> None:
        self._orders: dict[tuple[int, WeightsId], Order] = {}

    def take_order(
        self, message: ChunksWanted, now: float, is_here: Callable[[BufferId, int], bool]
    ) -> list[ForwardChunk]:
        order = Order(
            reach=message.reach,
            knows_hashes=message.knows_hashes,
            missing={buffer_id: set(indices) for buffer_id, indices in message.wants},
            touched_at=now,
        )
        self._orders[message.host, message.weights] = order
        here = [
            (buffer_id, index) for buffer_id, indices in message.wants for index in indices if is_here(buffer_id, index)
        ]
        for buffer_id, index in here:
            order.missing[buffer_id].discard(index)
        return [
            ForwardChunk(to=message.host, reach=message.reach, buffer_id=buffer_id, index=index)
            for buffer_id, index in here
        ]

    def on_chunk(self, buffer_id: BufferId, index: int, now: float) -> list[ForwardChunk]:
        """Forwards a chunk that has arrived."""
        forwards = []
        for (host, _), order in self._orders.items():
            missing = order.missing.get(buffer_id)
            if missing is not None and index in missing:
                missing.discard(index)
                order.touched_at = now
                forwards.append(ForwardChunk(to=host, reach=order.reach, buffer_id=buffer_id, index=index))
        return forwards

    def on_buffer(self, buffer_id: BufferId, now: float) -> list[ForwardChunk]:
        """Forwards a buffer that is complete."""
        indices = {index for order in self._orders.values() for index in order.missing.get(buffer_id, ())}
        return [forward for index in sorted(indices) for forward in self.on_chunk(buffer_id, index, now)]

    def is_up_to_date(self, host: int, manifest: WeightManifest) -> bool:
        """True if the host has requested this version, and knows its hashes or they are not known yet."""
        order = self._orders.get((host, manifest.weights))
        return order is not None and (order.knows_hashes or not manifest.is_hashed)

    def is_wanted(self, weights: WeightsId) -> bool:
        return any(weights == wanted for _, wanted in self._orders)

    def forget_host(self, host: int) -> None:
        self._keep(lambda whose, weights: whose != host)

    def forget_held(self, host: int, held: tuple[WeightsId, ...]) -> None:
        self._keep(lambda whose, weights: whose != host or weights not in held)

    def forget_older(self, host: int, weights: WeightsId, pinned: Callable[[WeightsId], bool]) -> None:
        """Drops a host's requests for versions older than this one, except those that an evaluation needs."""
        self._keep(lambda whose, older: whose != host or older >= weights or pinned(older))

    def forget_idle(self, now: float) -> None:
        self._orders = {key: order for key, order in self._orders.items() if now - order.touched_at < FORGET_AFTER_S}

    def _keep(self, is_kept: Callable[[int, WeightsId], bool]) -> None:
        self._orders = {key: order for key, order in self._orders.items() if is_kept(*key)}
