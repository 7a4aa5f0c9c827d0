"""Keys and values that a replica offers to the hosts of its samples, in shared memory.

    loop   open ─▶ tokens posted ─▶ (take ─▶ layer, layer, …) of each sample ─▶ close
    link        └─▶ the host calls ─▶ filled bytes are sent while others are still filled ─▶ the memory is freed

Invariants:
- the host has the tokens before any byte of the pages: a failure here costs it time, and nothing else;
- memory is freed when all was fetched, when the link breaks, and when no host called within COME_WITHIN_S;
- an offer is for one host, which knows its name, and can be fetched once.
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
from engine.live.kv.wire import NAME_BYTES, PIECE_BYTES, Head, announce, await_acknowledgement, give, mark, read_request
from engine.live.process.links import Links
from engine.live.weights.link import STALLED_S, Listener
from engine.live.weights.offered_bytes import Reach
from engine.live.weights.segments import Segment, release_pages
from engine.process.progress import working
from engine.weights.chunks import chunk_spans

log = logging.getLogger(__name__)

# The host may be in a long step when the tokens arrive; the memory is held until it calls.
COME_WITHIN_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The payload of handed-over samples: where their keys and values can be fetched."""

    reach: Reach
    name: bytes
    samples: tuple[int, ...]
    """The samples that may have pages."""


@dataclass(slots=True, kw_only=True)
class _Put:
    """Pages of one sample, which are being filled."""

    sample: int
    pages: KvPages
    """Without their data."""
    segment: Segment
    num_filled: int = 0

    @property
    def num_bytes(self) -> int:
        return self.segment.shared.num_bytes


class Offer:
    """The offer of one group: the loop's thread fills it, a link's thread sends it."""

    def __init__(self, owner: str, offered: Offered | None) -> None:
        self._owner = owner
        self.offered = offered
        """None: there are no pages to fetch."""
        self._changed = Condition()
        self._puts: list[_Put] = []
        self._is_closed = self._is_over = False

    # ── on the loop's thread ──────────────────────────────────────────────────────────────────────────────────────

    def room(self, sample: int) -> "Room":
        return Room(self, sample)

    def begin(self, sample: int, pages: KvPages, num_bytes: int) -> Segment | None:
        try:
            with working("move"):
                segment = Segment.create(self._owner, num_bytes)
        except OSError as error:
            log.warning("sample=%d moves without its KV cache: %s", sample, error)
            return None
        with self._changed:
            if self._is_over:  # the host's link has ended
                segment.remove()
                return None
            self._puts.append(_Put(sample=sample, pages=pages, segment=segment))
            self._changed.notify_all()
        return segment

    def fill(self, num_bytes: int) -> None:
        """Reports the filled bytes of the sample that was begun last."""
        with self._changed:
            self._puts[-1].num_filled = num_bytes
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # ── on a link's thread ────────────────────────────────────────────────────────────────────────────────────────

    def serve(self, link: socket.socket, memory: str) -> None:
        index = 0
        while (put := self._wait_for_put(index)) is not None:
            shared = put.segment.shared if put.segment.shared.memory == memory else None
            announce(link, Head.of(put.sample, put.pages, num_bytes=put.num_bytes, shared=shared))
            sent = 0
            while sent < put.num_bytes:
                upto = self._wait_for_bytes(put, beyond=sent)
                for start, end in chunk_spans(upto - sent, PIECE_BYTES):
                    piece = put.segment.buffer[sent + start : sent + end]
                    give(link, piece) if shared is None else mark(link, len(piece))
                sent = upto
            index += 1
        announce(link, None)
        await_acknowledgement(link)

    def give_back(self) -> None:
        """Frees the memory; other processes keep what they have mapped."""
        with self._changed:
            self._is_over = True
        for put in self._puts:
            put.segment.remove()
            release_pages(put.segment.buffer)

    def _wait_for_put(self, index: int) -> _Put | None:
        """None: there are no more samples."""
        self._wait(lambda: len(self._puts) > index or self._is_closed)
        return self._puts[index] if len(self._puts) > index else None

    def _wait_for_bytes(self, put: _Put, *, beyond: int) -> int:
        self._wait(lambda: put.num_filled > beyond)
        return put.num_filled

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(until, STALLED_S):
                raise TimeoutError(f"the engine filled no pages for {STALLED_S:g} s")


class Room:
    """The memory for one sample, as a `KvRoom` of the engine."""

    def __init__(self, offer: Offer, sample: int) -> None:
        self._offer, self._sample = offer, sample

    def take(self, pages: KvPages, num_bytes: int) -> memoryview | None:
        segment = self._offer.begin(self._sample, pages, num_bytes)
        return None if segment is None else segment.buffer

    def filled(self, num_bytes: int) -> None:
        self._offer.fill(num_bytes)


class Offers:
    def __init__(self, *, owner: str, links: Links) -> None:
        """`owner` is part of the memory's name, so that people can attribute it."""
        self._owner, self._links = owner, links
        self._listener: Listener | None = None
        self._open: dict[bytes, tuple[Offer, float]] = {}

    def open(self, samples: tuple[int, ...]) -> Offer:
        if not samples:
            return Offer(self._owner, None)
        if self._listener is None:  # most replicas move no sample for a long time
            self._listener = Listener(self._links.address(), self._links.token, self._serve)
        offered = Offered(reach=self._listener.reach, name=secrets.token_bytes(NAME_BYTES), samples=samples)
        offer = Offer(self._owner, offered)
        self._open[offered.name] = (offer, time.monotonic())
        return offer

    def expire(self, now: float) -> None:
        for name, (_, since) in list(self._open.items()):
            overdue = self._open.pop(name, None) if now - since > COME_WITHIN_S else None
            if overdue is not None:  # else the host has just called
                overdue[0].give_back()

    def _serve(self, link: socket.socket) -> None:
        name, memory = read_request(link)
        entry = self._open.pop(name, None)
        if entry is None:
            log.info("refused a request for keys and values that are not offered, or no longer")
            return
        offer, _ = entry
        try:
            offer.serve(link, memory)
        finally:
            offer.give_back()
