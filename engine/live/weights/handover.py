"""The handover of weights by the trainer: one copy into shared memory, and training goes on.

    snapshot(version, handover.allocate) ──▶ keep ──▶ payload, for the offer ──▶ forget
                    the stall                          the relay adopts the memory, or pulls it over a link

Invariants:
- the copy is all that training waits for: no hash, no delta, no network, however many relays there are;
- memory for the next copy is made ready on another thread, so that the copy finds its pages there;
- an offered copy stays until it is forgotten; a relay that adopted it has it for as long as it likes.
"""

import hmac
import logging
import socket
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from typing import Final

from engine.live.weights.link import Listener, Reach, call, receive_into, send_all
from engine.live.weights.offered_bytes import OfferedBytes
from engine.live.weights.segments import Segment
from engine.policy.lineage import WeightsId
from engine.signs import at_work
from engine.weights.chunks import TornWeights, chunk_spans, copy_bytes
from engine.weights.port import WeightManifest, WeightVersion

log = logging.getLogger(__name__)

PULL_BYTES: Final = 4 * 2**20
PULL_TRIES: Final = 3
# epoch and version that are wanted, and the byte to begin with
_WANTED: Final = struct.Struct("!qqQ")
# length and hash of the piece that follows; a length of 0 ends it
_PIECE: Final = struct.Struct("!Q32s")


class Handover:
    def __init__(self, *, owner: str, listen: str | None = None, token: bytes = b"") -> None:
        """`listen`: an address of this host, if the master may be on another one."""
        self._owner = owner
        self._kept: dict[WeightsId, Segment] = {}
        self._allocated: Segment | None = None
        self._spare: Future[Segment] | None = None
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="handover")
        self._listener = None if listen is None else Listener(listen, token, self._serve)

    def allocate(self, num_bytes: int) -> memoryview:
        """For `Trainer.snapshot`: writable and shared, valid until the version is forgotten."""
        segment = self._take_spare(num_bytes) or Segment.create(self._owner, num_bytes)
        if self._allocated is not None:
            self._allocated.remove()
        self._allocated = segment
        return segment.buffer

    def keep(self, weights: WeightVersion) -> None:
        """A snapshot that was not made in memory of `allocate` is copied there."""
        segment = self._allocated
        if segment is None or weights.buffer.obj is not segment.buffer.obj:
            copy_bytes(weights.buffer, self.allocate(len(weights.buffer)))
            segment = self._allocated
        assert segment is not None
        self._allocated = None
        self.forget(weights.manifest.weights)
        self._kept[weights.manifest.weights] = segment
        self._spare = self._maker.submit(Segment.create, self._owner, segment.shared.num_bytes)

    def payload(self, version: WeightsId) -> OfferedBytes:
        reach = None if self._listener is None else self._listener.reach
        return OfferedBytes(shared=self._kept[version].shared, reach=reach)

    def holds(self, version: WeightsId) -> bool:
        return version in self._kept

    def forget(self, version: WeightsId) -> None:
        segment = self._kept.pop(version, None)
        if segment is not None:
            segment.remove()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._maker.shutdown(wait=True)
        spare = self._take_spare(None)
        for segment in (*self._kept.values(), spare, self._allocated):
            if segment is not None:
                segment.remove()
        self._kept, self._allocated = {}, None

    def _take_spare(self, num_bytes: int | None) -> Segment | None:
        making, self._spare = self._spare, None
        if making is None:
            return None
        try:
            spare = making.result()
        except OSError as error:  # the host's memory is full; the caller will see whether it still is
            log.warning("no spare segment: %s", error)
            return None
        if num_bytes in (None, spare.shared.num_bytes):
            return spare
        spare.remove()
        return None

    def _serve(self, link: socket.socket) -> None:
        """One pull."""
        wanted = bytearray(_WANTED.size)
        if not receive_into(link, memoryview(wanted)):
            return
        epoch, version, start = _WANTED.unpack(wanted)
        segment = self._kept.get(WeightsId(epoch, version))
        if segment is not None:
            rest = segment.buffer[start:]
            for begin, end in chunk_spans(len(rest), PULL_BYTES):
                piece = rest[begin:end]
                send_all(link, _PIECE.pack(len(piece), sha256(piece).digest()), piece)
        link.sendall(_PIECE.pack(0, b""))


def pull(reach: Reach, token: bytes, manifest: WeightManifest, room: memoryview) -> None:
    """Fill `room` from the trainer's handover, another time from where it broke off. Raises `TornWeights`."""
    filled = 0
    for _ in range(PULL_TRIES):
        with suppress(OSError), call(reach, token) as link:
            link.sendall(_WANTED.pack(manifest.weights.epoch, manifest.weights.version, filled))
            filled = _pull_rest(link, room, filled)
        if filled == len(room):
            return
    raise TornWeights(f"weights={manifest.weights}: only {filled} of {len(room)} bytes came from the trainer")


def _pull_rest(link: socket.socket, room: memoryview, filled: int) -> int:
    header = bytearray(_PIECE.size)
    while receive_into(link, memoryview(header)):
        num_bytes, digest = _PIECE.unpack(header)
        if not num_bytes or num_bytes > len(room) - filled:
            return filled
        piece = room[filled : filled + num_bytes]
        with at_work("pull", num_bytes=num_bytes):
            if not receive_into(link, piece) or not hmac.compare_digest(sha256(piece).digest(), digest):
                return filled
        filled += num_bytes
    return filled
