"""TCP links between processes, for chunks of weights.

    sender: bounded queue ─ one thread ─▶ socket ─▶ receiver: one thread ─ straight into the arriving version's memory
    frame = header (buffer, index, length, hash) │ raw chunk

Invariants:
- both ends prove that they know the job's token before any weights are sent: a stranger can neither inject nor read;
- a chunk is sent from its memory and received into its final memory, without an intermediate copy on our side;
- no wait for a peer is unbounded: a full queue drops frames, a peer that reads nothing for STALLED_S is disconnected.
  The receiver requests missing chunks again;
- received bytes are not trusted: the receiver hashes them, piece by piece while they are in the CPU caches.
"""

import hmac
import logging
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from queue import Empty, Full, Queue
from threading import Thread
from typing import Final, Protocol

from xxhash import xxh3_128

from engine.live.weights.offered_bytes import Reach
from engine.policy.lineage import WeightsId
from engine.weights.port import BufferId

log = logging.getLogger(__name__)

_MAGIC: Final = b"LMN2"
# magic; epoch and version of the buffer; epoch and version of its base, both -1 for a whole; index; length; hash
_FRAME: Final = struct.Struct("!4sqqqqIQ16s")
_NONCE_BYTES: Final = 16
_PROOF_BYTES: Final = sha256().digest_size

QUEUE_FRAMES: Final = 4_096
CONNECT_S: Final = 3.0
STALLED_S: Final = 10.0
SOCKET_BYTES: Final = 4 * 2**20


class Sink(Protocol):
    def room(self, link: socket.socket, buffer_id: BufferId, index: int, num_bytes: int) -> memoryview | None:
        """The memory for this chunk; None: it is not wanted, or no longer. No other link writes there until this one
        calls `arrived` or `broken`."""

    def arrived(self, link: socket.socket, buffer_id: BufferId, index: int, digest: str, *, is_torn: bool) -> None:
        """`digest`: the hash of the received bytes; `is_torn`: the sender's hash differs."""

    def broken(self, link: socket.socket, buffer_id: BufferId, index: int) -> None:
        """The link ended within this chunk."""


class Stranger(ConnectionError):
    """The other end does not know this job's token."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__)


class Listener:
    """A listener that accepts links; each is served by a thread of its own."""

    def __init__(self, address: str, token: bytes, serve: Callable[[socket.socket], None]) -> None:
        self._token, self._serve = token, serve
        self._socket = socket.create_server((address, 0))
        self.reach = Reach(address=address, port=self._socket.getsockname()[1])
        Thread(target=self._accept, name="relay-listener", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:  # closed
                return
            Thread(target=self._run, args=(link,), name="relay-link", daemon=True).start()

    def _run(self, link: socket.socket) -> None:
        with link:
            try:
                _prepare(link)
                _prove(link, self._token, own=b"listener", other=b"caller")
                self._serve(link)
            except Stranger as error:
                log.warning("link refused: %s", error)
            except OSError as error:
                log.info("link ended: %s", error)


def call(reach: Reach, token: bytes) -> socket.socket:
    link = socket.create_connection((reach.address, reach.port), timeout=CONNECT_S)
    try:
        _prepare(link)
        _prove(link, token, own=b"caller", other=b"listener")
    except BaseException:
        link.close()
        raise
    return link


def receive_chunks(link: socket.socket, sink: Sink) -> None:
    """Receives chunks until the link is closed or breaks."""
    link.settimeout(None)  # a link may be idle for as long as a training step takes
    header = bytearray(_FRAME.size)
    while receive_into(link, memoryview(header)):
        magic, epoch, version, base_epoch, base_version, index, num_bytes, expected = _FRAME.unpack(header)
        if magic != _MAGIC:
            raise OSError("received bytes are not a frame")
        base = None if base_epoch < 0 else WeightsId(base_epoch, base_version)
        buffer_id = BufferId(weights=WeightsId(epoch, version), base=base)
        room = sink.room(link, buffer_id, index, num_bytes)
        if room is None:
            _drain(link, num_bytes)
            continue
        hasher = xxh3_128()
        try:
            is_whole = receive_into(link, room, hasher.update)
        except OSError:
            is_whole = False
        if not is_whole:
            sink.broken(link, buffer_id, index)
            return
        sink.arrived(link, buffer_id, index, hasher.hexdigest(), is_torn=hasher.digest() != expected)


class Sender:
    """Sends chunks to one receiver."""

    def __init__(self, reach: Reach, token: bytes) -> None:
        self.reach = reach
        self._token = token
        self._queue: Queue[tuple[bytes, memoryview] | None] = Queue(maxsize=QUEUE_FRAMES)
        Thread(target=self._run, name="relay-sender", daemon=True).start()

    def send(self, buffer_id: BufferId, index: int, chunk: memoryview, digest: str) -> None:
        base = buffer_id.base
        header = _FRAME.pack(
            _MAGIC,
            buffer_id.weights.epoch,
            buffer_id.weights.version,
            -1 if base is None else base.epoch,
            -1 if base is None else base.version,
            index,
            len(chunk),
            bytes.fromhex(digest),
        )
        with suppress(Full):
            self._queue.put_nowait((header, chunk))

    def close(self) -> None:
        """Ends the sender; queued chunks are dropped."""
        self._clear()
        with suppress(Full):
            self._queue.put_nowait(None)

    def _run(self) -> None:
        link: socket.socket | None = None
        while True:
            frame = self._queue.get()
            if frame is None:
                break
            try:
                link = call(self.reach, self._token) if link is None else link
                send_all(link, *frame)
            except OSError as error:
                log.info("link to port=%d broke: %s", self.reach.port, error)
                self._clear()
                _close(link)
                link = None
            del frame  # a view of weights, which would pin their memory until the next chunk
        _close(link)

    def _clear(self) -> None:
        with suppress(Empty):
            while True:
                self._queue.get_nowait()


class Senders:
    """One sender for each host that requested chunks."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._by_host: dict[int, Sender] = {}

    def to(self, host: int, reach: Reach) -> Sender:
        sender = self._by_host.get(host)
        if sender is None or sender.reach != reach:  # the host's relay was restarted, on another port
            if sender is not None:
                sender.close()
            sender = self._by_host[host] = Sender(reach, self._token)
        return sender


def receive_into(
    link: socket.socket, room: memoryview, seen: Callable[[memoryview], object] = lambda piece: None
) -> bool:
    """False: the link was closed before `room` was full. `seen`: called with each received piece."""
    filled = 0
    while filled < len(room):
        received = link.recv_into(room[filled:])
        if not received:
            return False
        seen(room[filled : filled + received])
        filled += received
    return True


def send_all(link: socket.socket, header: bytes, chunk: memoryview) -> None:
    """Sends both in one call, so that a small header is not a packet of its own."""
    sent = link.sendmsg([header, chunk])
    if sent < len(header):
        link.sendall(header[sent:])
        sent = len(header)
    link.sendall(chunk[sent - len(header) :])


def _prepare(link: socket.socket) -> None:
    link.settimeout(STALLED_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)


def _prove(link: socket.socket, token: bytes, *, own: bytes, other: bytes) -> None:
    """Each end sends a nonce and proves that it can sign both; a proof cannot be reused or relayed."""
    own_nonce = secrets.token_bytes(_NONCE_BYTES)
    link.sendall(own_nonce)
    other_nonce = _receive(link, _NONCE_BYTES)
    link.sendall(_proof(token, own, own_nonce, other_nonce))
    if not hmac.compare_digest(_receive(link, _PROOF_BYTES), _proof(token, other, other_nonce, own_nonce)):
        raise Stranger


def _proof(token: bytes, whose: bytes, own_nonce: bytes, other_nonce: bytes) -> bytes:
    return hmac.digest(token, whose + own_nonce + other_nonce, "sha256")


def _receive(link: socket.socket, num_bytes: int) -> bytes:
    room = bytearray(num_bytes)
    if not receive_into(link, memoryview(room)):
        raise Stranger
    return bytes(room)


def _drain(link: socket.socket, num_bytes: int) -> None:
    scratch = memoryview(bytearray(min(num_bytes, SOCKET_BYTES)))
    while num_bytes:
        received = link.recv_into(scratch[: min(num_bytes, len(scratch))])
        if not received:
            return
        num_bytes -= received


def _close(link: socket.socket | None) -> None:
    if link is not None:
        link.close()
