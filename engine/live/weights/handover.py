"""The trainer's handover of weights: one copy into shared memory of the training hosts, then training continues.

    one process    snapshot(version, handover.allocate) ──▶ keep ────────┐
    ranks          reserve ──▶ every rank writes its part ──▶ keep_part ─┴▶ payload, for the offer ──▶ forget
                                      the stall                              the relay adopts the memory, or pulls it

Invariants:
- training waits only for the copy and its sums: for no hash, no delta, no network, however many relays there are;
- another thread prepares the memory for the next copy, so that the copy finds populated pages;
- an offered copy stays until it is forgotten; a relay that adopted it keeps it independently;
- memory that was allocated but not kept is never offered: the next allocation has another name;
- memory of dead processes on this host is freed before this process allocates any.
"""

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from xxhash import xxh3_128, xxh3_128_digest

from engine.live.weights.link import Listener, call, receive_into, send_all
from engine.live.weights.offered_bytes import OfferedBytes, OfferedPart
from engine.live.weights.segments import Segment, SharedBytes, map_shared, release_pages, sweep
from engine.policy.lineage import WeightsId
from engine.process.progress import working
from engine.weights.chunks import TornWeights, chunk_spans, copy_bytes
from engine.weights.port import WeightVersion
from engine.weights.spans import Spans

log = logging.getLogger(__name__)

PULL_BYTES: Final = 4 * 2**20
PULL_TRIES: Final = 3
# requested epoch and version, and the first byte
_WANTED: Final = struct.Struct("!qqQ")
# length and hash of the piece that follows; the hash detects accidental corruption; a length of 0 ends the stream
_PIECE: Final = struct.Struct("!Q16s")

Arrived = Callable[[int, int], None]
"""Called with each span of a version that is in place."""


class Handover:
    """The copies of one host."""

    def __init__(self, *, owner: str, listen: str | None = None, token: bytes = b"") -> None:
        """`listen`: an address of this host, if the master may be on another one."""
        self._owner = owner
        self._kept: dict[WeightsId, tuple[Segment, Spans]] = {}
        self._given: Segment | None = None
        self._spare: Future[Segment] | None = None
        for name in sweep():
            log.info("removed segment=%s of dead processes", name)
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="handover")
        self._listener = None if listen is None else Listener(listen, token, self._serve)

    # ── a whole version, from one process ─────────────────────────────────────────────────────────────────────────

    def allocate(self, num_bytes: int) -> memoryview:
        """For `Trainer.snapshot`: writable and shared, valid until the version is forgotten."""
        return self._give(self._take_spare(num_bytes) or Segment.create(self._owner, num_bytes)).buffer

    def wait_until_ready(self) -> None:
        """Waits until the memory for the next copy is allocated."""
        if self._spare is not None:
            self._spare.result()

    def keep(self, weights: WeightVersion) -> None:
        """Keeps a snapshot; copies it first if it was not made in memory of `allocate`."""
        if self._given is None or weights.buffer.obj is not self._given.buffer.obj:
            copy_bytes(weights.buffer, self.allocate(len(weights.buffer)))
        num_bytes = len(weights.buffer)
        self.keep_part(weights.manifest.weights, Spans.joined([(0, num_bytes)]))
        self._spare = self._maker.submit(Segment.create, self._owner, num_bytes)

    # ── a host's part, from several processes ─────────────────────────────────────────────────────────────────────

    def reserve(self, num_bytes: int) -> SharedBytes:
        """Reserves a name under which every process of this host writes its bytes (`map_to_write`)."""
        return self._give(Segment.reserve(self._owner, num_bytes)).shared

    def keep_part(self, version: WeightsId, spans: Spans) -> None:
        """Keeps the last allocated memory, which is filled now with these bytes of the version."""
        segment, self._given = self._given, None
        assert segment is not None and segment.shared.num_bytes == spans.num_bytes, "other memory was allocated"
        self.forget(version)
        self._kept[version] = (segment, spans)

    def part(self, version: WeightsId) -> OfferedPart:
        segment, spans = self._kept[version]
        reach = None if self._listener is None else self._listener.reach
        return OfferedPart(shared=segment.shared, spans=spans, reach=reach)

    # ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def payload(self, version: WeightsId) -> OfferedBytes:
        return OfferedBytes(parts=(self.part(version),))

    def holds(self, version: WeightsId) -> bool:
        return version in self._kept

    def forget(self, version: WeightsId) -> None:
        if version in self._kept:
            segment, _ = self._kept.pop(version)
            segment.remove()
            self._maker.submit(release_pages, segment.buffer)  # else the next copy would pay for it

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._maker.shutdown(wait=True)
        spare = self._take_spare(None)
        for segment in (*(kept for kept, _ in self._kept.values()), spare, self._given):
            if segment is not None:
                segment.remove()
        self._kept, self._given = {}, None

    def give_up(self) -> None:
        """Frees the last allocated memory if it was not kept."""
        if self._given is not None:
            self._given.remove()
        self._given = None

    def _give(self, segment: Segment) -> Segment:
        self.give_up()
        self._given = segment
        return segment

    def _take_spare(self, num_bytes: int | None) -> Segment | None:
        future, self._spare = self._spare, None
        if future is None:
            return None
        try:
            spare = future.result()
        except OSError as error:  # the host's memory was full; the caller tries again
            log.warning("cannot allocate a spare segment: %s", error)
            return None
        if num_bytes in (None, spare.shared.num_bytes):
            return spare
        spare.remove()
        return None

    def _serve(self, link: socket.socket) -> None:
        """Serves one pull."""
        wanted = bytearray(_WANTED.size)
        if not receive_into(link, memoryview(wanted)):
            return
        epoch, version, start = _WANTED.unpack(wanted)
        kept = self._kept.get(WeightsId(epoch, version))
        if kept is not None:
            rest = kept[0].buffer[start:]
            for begin, end in chunk_spans(len(rest), PULL_BYTES):
                piece = rest[begin:end]
                send_all(link, _PIECE.pack(len(piece), xxh3_128_digest(piece)), piece)
        link.sendall(_PIECE.pack(0, b""))


def pull(part: OfferedPart, token: bytes, weights: WeightsId, version: memoryview, arrived: Arrived) -> None:
    """Pulls a host's bytes into their places in `version`; retries resume. Raises `TornWeights`."""
    filled, num_bytes = 0, part.spans.num_bytes
    for _ in range(PULL_TRIES if part.reach is not None else 0):
        assert part.reach is not None
        with suppress(OSError), call(part.reach, token) as link:
            link.sendall(_WANTED.pack(weights.epoch, weights.version, filled))
            for piece in _pieces(link, part.spans, version, filled):
                for start, end in part.spans.scattered(filled, piece):
                    arrived(start, end)
                filled = piece
        if filled == num_bytes:
            return
    raise TornWeights(f"weights={weights}: only {filled} of {num_bytes} bytes arrived from a host of the trainer")


def _pieces(link: socket.socket, spans: Spans, version: memoryview, filled: int) -> Iterator[int]:
    """Yields the number of bytes in place, after each valid piece."""
    header = bytearray(_PIECE.size)
    while receive_into(link, memoryview(header)):
        num_bytes, digest = _PIECE.unpack(header)
        if not num_bytes or num_bytes > spans.num_bytes - filled:
            return
        hasher = xxh3_128()
        with working("pull"):
            for start, end in spans.scattered(filled, filled + num_bytes):
                if not receive_into(link, version[start:end]):
                    return
                hasher.update(version[start:end])
        if hasher.digest() != digest:
            return
        filled += num_bytes
        yield filled


def copy_part(part: OfferedPart, version: memoryview, arrived: Arrived) -> None:
    """Copies the bytes of a process of this host into their places in `version`."""
    memory = map_shared(part.shared)
    for (start, end), place in zip(part.spans.of_version, part.spans.places, strict=False):
        for first, last in chunk_spans(end - start, PULL_BYTES):
            copy_bytes(memory[place + first : place + last], version[start + first : start + last])
            arrived(start + first, start + last)
