"""Keys and values that a replica offers to the hosts of its samples, in shared memory.

    loop   open ─▶ tokens posted ─▶ (take ─▶ layer, layer, …) of each sample ─▶ close
    link        └─▶ whoever comes ─▶ what is filled so far, while the rest still is ─▶ the memory is given back

Invariants:
- the host has the tokens before a byte of this: whatever fails here costs it time, and nothing else;
- memory is given back when all was fetched, when the link breaks, and when nobody came within COME_WITHIN_S;
- an offer is made to one host, which knows its name, and is gone once it came.
"""

import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from typing import Final

from engine.inference.port import KvPages
from engine.live.kv.wire import NAME_BYTES, PIECE_BYTES, Head, announce, asked, await_thanks, give, mark
from engine.live.process.links import Links
from engine.live.weights.link import STALLED_S, Listener
from engine.live.weights.offered_bytes import Reach
from engine.live.weights.segments import Segment, let_go_of
from engine.signs import at_work
from engine.weights.chunks import chunk_spans

log = logging.getLogger(__name__)

# The host may be in the middle of a long step when the tokens come; until it asks, memory is held.
COME_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The payload of samples that were handed over: where keys and values are to be had."""

    reach: Reach
    name: bytes
    samples: tuple[int, ...]
    """Those that may have some."""


@dataclass(slots=True, kw_only=True)
class _Put:
    """Pages of one sample, which are put in."""

    sample: int
    pages: KvPages
    """Without their data."""
    segment: Segment
    num_filled: int = 0

    @property
    def num_bytes(self) -> int:
        return self.segment.shared.num_bytes


class Offer:
    """What is offered of one group: filled by the loop's thread, given by a link's."""

    def __init__(self, owner: str, offered: Offered | None) -> None:
        self._owner = owner
        self.offered = offered
        """None: there is nothing to come for."""
        self._changed = Condition()
        self._puts: list[_Put] = []
        self._is_closed = self._is_over = False

    # ── the loop's ────────────────────────────────────────────────────────────────────────────────────────────────

    def room(self, sample: int) -> "Room":
        return Room(self, sample)

    def begin(self, sample: int, pages: KvPages, num_bytes: int) -> Segment | None:
        try:
            with at_work("move"):
                segment = Segment.create(self._owner, num_bytes)
        except OSError as error:
            log.warning("sample=%d moves without its cache: %s", sample, error)
            return None
        with self._changed:
            if self._is_over:  # whoever came is gone
                segment.remove()
                return None
            self._puts.append(_Put(sample=sample, pages=pages, segment=segment))
            self._changed.notify_all()
        return segment

    def fill(self, num_bytes: int) -> None:
        """Of the sample that was begun last, so many are there."""
        with self._changed:
            self._puts[-1].num_filled = num_bytes
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ── a link's, or nobody's ─────────────────────────────────────────────────────────────────────────────────────

    def serve(self, link: socket.socket, memory: str) -> None:
        index = 0
        while (put := self._put(index)) is not None:
            shared = put.segment.shared if put.segment.shared.memory == memory else None
            announce(link, Head.of(put.sample, put.pages, num_bytes=put.num_bytes, shared=shared))
            sent = 0
            while sent < put.num_bytes:
                upto = self._filled(put, beyond=sent)
                for start, end in chunk_spans(upto - sent, PIECE_BYTES):
                    piece = put.segment.buffer[sent + start : sent + end]
                    give(link, piece) if shared is None else mark(link, len(piece))
                sent = upto
            index += 1
        announce(link, None)
        await_thanks(link)

    def give_back(self) -> None:
        """What is mapped elsewhere stays."""
        with self._changed:
            self._is_over = True
        for put in self._puts:
            put.segment.remove()
            let_go_of(put.segment.buffer)

    def _put(self, index: int) -> _Put | None:
        """None: there are no more."""
        self._wait(lambda: len(self._puts) > index or self._is_closed)
        return self._puts[index] if len(self._puts) > index else None

    def _filled(self, put: _Put, *, beyond: int) -> int:
        self._wait(lambda: put.num_filled > beyond)
        return put.num_filled

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(until, STALLED_S):
                raise TimeoutError("the engine does not get on with its pages")


class Room:
    """Of one sample, as an engine wants it."""

    def __init__(self, offer: Offer, sample: int) -> None:
        self._offer, self._sample = offer, sample

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        segment = self._offer.begin(self._sample, pages, num_bytes)
        return None if segment is None else segment.buffer

    def filled(self, num_bytes: int) -> None:
        self._offer.fill(num_bytes)


class Offers:
    def __init__(self, *, owner: str, links: Links) -> None:
        """`owner` is part of the memory's name, for whoever looks into the folder."""
        self._owner, self._links = owner, links
        self._listener: Listener | None = None
        self._open: dict[bytes, tuple[Offer, float]] = {}

    def open(self, samples: tuple[int, ...]) -> Offer:
        if not samples:
            return Offer(self._owner, None)
        if self._listener is None:  # most replicas move nothing for a long time
            self._listener = Listener(self._links.address(), self._links.token, self._serve)
        offered = Offered(reach=self._listener.reach, name=secrets.token_bytes(NAME_BYTES), samples=samples)
        offer = Offer(self._owner, offered)
        self._open[offered.name] = (offer, time.monotonic())
        return offer

    def expire(self, now: float) -> None:
        for name, (_, since) in list(self._open.items()):
            overdue = self._open.pop(name, None) if now - since > COME_WITHIN_S else None
            if overdue is not None:  # else somebody came just now
                overdue[0].give_back()

    def _serve(self, link: socket.socket) -> None:
        name, memory = asked(link)
        opened = self._open.pop(name, None)
        if opened is None:
            log.info("keys and values were asked for that are not offered (any more)")
            return
        offer, _ = opened
        try:
            offer.serve(link, memory)
        finally:
            offer.give_back()
