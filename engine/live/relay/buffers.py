"""A relay's buffers: complete ones, and ones that arrive chunk by chunk from several links at once.

    buffer: expected ──a worker has the memory──▶ open ──▶ dropped
    chunk: absent ──room──▶ filling ──arrived, with the sender's hash──▶ present
                              └──broken, or with another hash──▶ absent

Invariants:
- links fill only buffers that were opened for links, never one that receives the trainer's bytes;
- a present chunk is never rewritten, and a filling chunk has one link as its writer: a second link with the same chunk
  shuts the first one down, and waits until the first has released the chunk;
- a link with a chunk for an expected buffer waits until that buffer is open;
- a worker frees memory, since gigabytes take seconds.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

from engine.live.weights.segments import Segment
from engine.pipeline.effects import OpenBuffer
from engine.pipeline.messages.to_relay import ChunkHashed
from engine.weights.chunks import TornWeights
from engine.weights.port import BufferId

LET_GO_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class WeightBuffer:
    memory: memoryview
    segment: Segment | None
    """None: in the process's own memory, like deltas."""
    chunk_bytes: int
    arrival: int = 0
    comes_by_link: bool = False
    expected: tuple[str, ...] = ()
    """Hashes that chunks must have, if they are known already."""
    digests: dict[int, str] = field(default_factory=dict)
    """Hashes of the present chunks."""
    filled_by: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def num_chunks(self) -> int:
        return -(-len(self.memory) // self.chunk_bytes)

    @property
    def hashes(self) -> tuple[str, ...]:
        """Hashes of all chunks. Raises `TornWeights` if a chunk is missing or was wrong."""
        if len(self.digests) != self.num_chunks:
            raise TornWeights("some chunks of this version are missing")
        return tuple(self.digests[index] for index in range(self.num_chunks))

    def chunk(self, index: int) -> memoryview:
        return self.memory[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]


class WeightBuffers:
    """The buffers of a relay, which links write into."""

    def __init__(
        self,
        notify: Callable[[ChunkHashed], None],
        submit: Callable[[Callable[[], None]], None],
        free: Callable[[Segment], None] = Segment.remove,
    ) -> None:
        """`submit`: runs a job on the worker that opens and frees memory."""
        self._notify, self._submit, self._free = notify, submit, free
        self._buffers: dict[BufferId, WeightBuffer] = {}
        self._expected: dict[BufferId, int] = {}
        """The arrivals whose memory is being allocated."""
        self._dropped: list[WeightBuffer] = []
        self._changed = Condition()
        self.num_chunks = self.num_bytes = self.num_useless_chunks = 0
        """Valid chunks received, their bytes, and chunks received although they were present already."""

    def get(self, buffer_id: BufferId) -> WeightBuffer | None:
        return self._buffers.get(buffer_id)

    def put(self, buffer_id: BufferId, content: WeightBuffer) -> None:
        with self._changed:
            self._let_go_of(buffer_id)
            self._buffers[buffer_id] = content

    def expect(self, effect: OpenBuffer) -> None:
        with self._changed:
            self._expected[effect.buffer_id] = effect.arrival

    def expect_no_more(self, effect: OpenBuffer) -> bool:
        """True if the buffer was still expected."""
        with self._changed:
            is_wanted = self._expected.get(effect.buffer_id) == effect.arrival
            if is_wanted:
                del self._expected[effect.buffer_id]
            self._changed.notify_all()
            return is_wanted

    def open(self, effect: OpenBuffer, memory: memoryview, segment: Segment | None) -> None:
        content = WeightBuffer(
            memory=memory,
            segment=segment,
            chunk_bytes=effect.chunk_bytes,
            arrival=effect.arrival,
            comes_by_link=True,
            expected=effect.chunk_hashes,
        )
        with self._changed:
            if self.expect_no_more(effect):
                self.put(effect.buffer_id, content)
                return
        self._remove(content)

    def drop(self, buffer_id: BufferId) -> None:
        with self._changed:
            self._expected.pop(buffer_id, None)
            self._let_go_of(buffer_id)
            self._changed.notify_all()

    def drop_all(self) -> None:
        for buffer_id in list(self._buffers):
            self.drop(buffer_id)

    def _let_go_of(self, buffer_id: BufferId) -> None:
        if buffer_id in self._buffers:
            self._dropped.append(self._buffers.pop(buffer_id))  # no local variable keeps a reference
            self._submit(self._give_back)

    def _give_back(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, []
        for content in dropped:
            self._remove(content)

    def _remove(self, content: WeightBuffer) -> None:
        if content.segment is not None:
            self._free(content.segment)

    # ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def room(self, link: socket.socket, buffer_id: BufferId, index: int, num_bytes: int) -> memoryview | None:
        with self._changed:
            self._changed.wait_for(lambda: buffer_id not in self._expected)
            content = self._buffers.get(buffer_id)
            if content is None or not content.comes_by_link or len(content.chunk(index)) != num_bytes:
                return None
            holder = content.filled_by.get(index)
            if holder is not None:
                with suppress(OSError):  # the link has closed by itself
                    holder.shutdown(socket.SHUT_RDWR)
                self._changed.wait_for(lambda: index not in content.filled_by, LET_GO_S)
            if index in content.digests or index in content.filled_by:
                self.num_useless_chunks += index in content.digests
                return None
            content.filled_by[index] = link
            return content.chunk(index)

    def arrived(self, link: socket.socket, buffer_id: BufferId, index: int, digest: str, *, is_torn: bool) -> None:
        content = self._held_by(link, buffer_id, index)
        if content is None:
            return
        is_right = not is_torn and (not content.expected or content.expected[index] == digest)
        self._let_go(content, index, digest if is_right else None)
        arrival = content.arrival
        self._notify(ChunkHashed(arrival=arrival, buffer_id=buffer_id, index=index, digest=digest, is_torn=is_torn))

    def broken(self, link: socket.socket, buffer_id: BufferId, index: int) -> None:
        content = self._held_by(link, buffer_id, index)
        if content is not None:
            self._let_go(content, index, None)

    def _held_by(self, link: socket.socket, buffer_id: BufferId, index: int) -> WeightBuffer | None:
        """The buffer that this link fills; None if it was dropped, or dropped and opened again, meanwhile."""
        content = self._buffers.get(buffer_id)
        return content if content is not None and content.filled_by.get(index) is link else None

    def _let_go(self, content: WeightBuffer, index: int, digest: str | None) -> None:
        with self._changed:
            content.filled_by.pop(index, None)
            if digest is not None:
                content.digests[index] = digest
                self.num_chunks += 1
                self.num_bytes += len(content.chunk(index))
            self._changed.notify_all()
