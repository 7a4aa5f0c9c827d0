"""The protocol for keys and values on a link, between the source replica and the host that fetches them.

    host     name of the offer · the shared memory that it sees
    source   head of a sample's pages · piece · piece · … · head of the next · … · an empty head
    host     a byte: done

With shared memory, a piece is only a mark: the number of further bytes that are filled.

Invariants:
- bytes from the network are used only if their checksum is right, and never in part;
- no pickle, and no length beyond the one that a head announced.
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
# Large enough that its frame costs nothing, and sent while the next piece is filled.
PIECE_BYTES: Final = 8 * 2**20
# A gigabit link. On a slower one, reading the tokens again is faster.
SLOWEST_BYTES_PER_S: Final = 100e6
_TEXT: Final = struct.Struct("!II")
_PIECE: Final = struct.Struct("!QI")
_MAX_TEXT_BYTES: Final = 2**16
_DONE: Final = b"."


class TornPages(ConnectionError):
    """Keys and values arrived with a wrong checksum or length."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of one sample's pages."""

    sample: int
    layout: str
    version: int
    num_tokens: int
    mixed: bool
    num_bytes: int
    shared: str | None
    """The name of their shared memory, which both map; None: their bytes follow."""

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
    """A deadline for so many bytes in total, which trickling bytes do not extend."""

    def __init__(self, num_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + STALLED_S + num_bytes / SLOWEST_BYTES_PER_S

    def receive(self, link: socket.socket, room: memoryview) -> None:
        while room:
            left_s = self._at - self._clock()
            if left_s <= 0:
                raise TimeoutError("keys and values took longer than recomputing them would")
            link.settimeout(min(left_s, STALLED_S))
            received = link.recv_into(room)
            if not received:
                raise ConnectionError("the link ended before all bytes had arrived")
            room = room[received:]

    def received(self, link: socket.socket, num_bytes: int) -> bytes:
        room = bytearray(num_bytes)
        self.receive(link, memoryview(room))
        return bytes(room)


# ── from the host ─────────────────────────────────────────────────────────────────────────────────────────────────────


def request(link: socket.socket, name: bytes, memory: str) -> None:
    _send(link, {"name": name.hex(), "memory": memory})


def read_request(link: socket.socket) -> tuple[bytes, str]:
    """The offer's name, and the shared memory that the host sees."""
    fields = _receive(link, Deadline(0))
    return bytes.fromhex(str(fields["name"])), str(fields["memory"])


def acknowledge(link: socket.socket) -> None:
    link.sendall(_DONE)


def await_acknowledgement(link: socket.socket) -> None:
    """Returns once the host has all pages, or is gone."""
    link.settimeout(STALLED_S)
    link.recv(len(_DONE))


# ── from the source ───────────────────────────────────────────────────────────────────────────────────────────────────


def announce(link: socket.socket, head: Head | None) -> None:
    """None: there are no more samples."""
    _send(link, {} if head is None else asdict(head))


def read_head(link: socket.socket) -> Head | None:
    fields = _receive(link, Deadline(0))
    return Head(**fields) if fields else None


def give(link: socket.socket, piece: memoryview) -> None:
    send_all(link, _PIECE.pack(len(piece), zlib.crc32(piece)), piece)


def mark(link: socket.socket, num_bytes: int) -> None:
    """Reports so many more filled bytes in the shared memory."""
    link.sendall(_PIECE.pack(num_bytes, 0))


def take(link: socket.socket, room: memoryview, deadline: Deadline, *, is_shared: bool) -> int:
    """Receives the next piece into the beginning of `room`; returns its length."""
    num_bytes, checksum = _PIECE.unpack(deadline.received(link, _PIECE.size))
    if not 0 < num_bytes <= len(room):
        raise TornPages
    if not is_shared:
        deadline.receive(link, room[:num_bytes])
        if zlib.crc32(room[:num_bytes]) != checksum:
            raise TornPages
    return int(num_bytes)


def _send(link: socket.socket, document: object) -> None:
    content = json.dumps(document).encode()
    link.sendall(_TEXT.pack(len(content), zlib.crc32(content)) + content)


def _receive(link: socket.socket, deadline: Deadline) -> Any:
    length, checksum = _TEXT.unpack(deadline.received(link, _TEXT.size))
    if length > _MAX_TEXT_BYTES:
        raise TornPages
    content = deadline.received(link, length)
    if zlib.crc32(content) != checksum:
        raise TornPages
    return json.loads(content)
