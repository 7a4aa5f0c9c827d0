"""What is said on a link about keys and values, between the replica that has them and the one that comes for them.

    host     name of the offer · the shared memory that it sees
    source   head of a sample's pages · piece · piece · … · head of the next · … · an empty head
    host     a byte: done

Where memory is shared, a piece is a mark of how much more is there.

Invariants:
- whatever came over the network is what was sent, by its checksum: what is not is refused, and never used in part;
- no pickle, and no length that is believed beyond what a head announced.
"""

import json
import socket
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from engine.inference.port import KvPages
from engine.live.weights.link import STALLED_S, send_all
from engine.live.weights.segments import SharedBytes

NAME_BYTES: Final = 16
# Its frame costs nothing beside it, and it is under way while the next one is made.
PIECE_BYTES: Final = 8 * 2**20
# A link of a gigabit. On a slower one the tokens are sooner read again.
SLOWEST_BYTES_PER_S: Final = 100e6
_WORDS: Final = struct.Struct("!II")
_PIECE: Final = struct.Struct("!QI")
_MAX_WORDS_BYTES: Final = 2**16
_DONE: Final = b"."


class TornPages(ConnectionError):
    """Keys and values came as they were not sent."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Of the pages of one sample."""

    sample: int
    layout: str
    version: int
    num_tokens: int
    mixed: bool
    num_bytes: int
    shared: str | None
    """The name of the memory that they lie in, which both map; None: their bytes follow."""

    @classmethod
    def of(cls, sample: int, pages: KvPages, *, num_bytes: int, shared: SharedBytes | None) -> Self:
        return cls(
            sample=sample,
            layout=pages.layout,
            version=pages.version,
            num_tokens=pages.num_tokens,
            mixed=pages.mixed,
            num_bytes=num_bytes,
            shared=None if shared is None else shared.name,
        )

    def pages(self, data: memoryview) -> KvPages:
        return KvPages(
            layout=self.layout, version=self.version, num_tokens=self.num_tokens, mixed=self.mixed, data=data
        )


class Deadline:
    """For so many bytes, however they drip."""

    def __init__(self, num_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + STALLED_S + num_bytes / SLOWEST_BYTES_PER_S

    def receive(self, link: socket.socket, room: memoryview) -> None:
        while room:
            left_s = self._at - self._clock()
            if left_s <= 0:
                raise TimeoutError("keys and values took longer than their tokens would")
            link.settimeout(min(left_s, STALLED_S))
            received = link.recv_into(room)
            if not received:
                raise ConnectionError("the link ended before all was there")
            room = room[received:]

    def received(self, link: socket.socket, num_bytes: int) -> bytes:
        room = bytearray(num_bytes)
        self.receive(link, memoryview(room))
        return bytes(room)


# ── the host's words ──────────────────────────────────────────────────────────────────────────────────────────────────


def ask(link: socket.socket, name: bytes, memory: str) -> None:
    _say(link, {"name": name.hex(), "memory": memory})


def asked(link: socket.socket) -> tuple[bytes, str]:
    """The offer's name, and the shared memory that the host sees."""
    said = _heard(link, Deadline(0))
    return bytes.fromhex(str(said["name"])), str(said["memory"])


def thank(link: socket.socket) -> None:
    link.sendall(_DONE)


def await_thanks(link: socket.socket) -> None:
    """As soon as the host has all, or is gone."""
    link.settimeout(STALLED_S)
    link.recv(len(_DONE))


# ── the source's ──────────────────────────────────────────────────────────────────────────────────────────────────────


def announce(link: socket.socket, head: Head | None) -> None:
    """None: there are no more."""
    _say(link, {} if head is None else asdict(head))


def announced(link: socket.socket) -> Head | None:
    said = _heard(link, Deadline(0))
    return Head(**said) if said else None


def give(link: socket.socket, piece: memoryview) -> None:
    send_all(link, _PIECE.pack(len(piece), zlib.crc32(piece)), piece)


def mark(link: socket.socket, num_bytes: int) -> None:
    """So many more bytes are there, in the memory that both see."""
    link.sendall(_PIECE.pack(num_bytes, 0))


def take(link: socket.socket, room: memoryview, deadline: Deadline, *, is_shared: bool) -> int:
    """The length of the next piece, which lies at the beginning of `room` now."""
    num_bytes, checksum = _PIECE.unpack(deadline.received(link, _PIECE.size))
    if not 0 < num_bytes <= len(room):
        raise TornPages
    if not is_shared:
        deadline.receive(link, room[:num_bytes])
        if zlib.crc32(room[:num_bytes]) != checksum:
            raise TornPages
    return int(num_bytes)


def _say(link: socket.socket, said: object) -> None:
    content = json.dumps(said).encode()
    link.sendall(_WORDS.pack(len(content), zlib.crc32(content)) + content)


def _heard(link: socket.socket, deadline: Deadline) -> Any:
    length, checksum = _WORDS.unpack(deadline.received(link, _WORDS.size))
    if length > _MAX_WORDS_BYTES:
        raise TornPages
    content = deadline.received(link, length)
    if zlib.crc32(content) != checksum:
        raise TornPages
    return json.loads(content)
