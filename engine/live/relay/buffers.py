"""The memory of a relay: buffers that are here and buffers that arrive, chunk by chunk, from several links at once.

    buffer: expected ──a worker has the memory──▶ open ──▶ dropped
    chunk: absent ──room──▶ filling ──arrived, as its sender says──▶ here
                              └──broken, or with another hash──▶ absent

Invariants:
- links fill only what was opened for them, never what the trainer's bytes are put into;
- a chunk that is here is never written again, and one that is filling is written by one link only: who comes with the
  same chunk takes it over from a link that stalls, and waits until that one has let go;
- a link that comes with a chunk for a buffer that is expected waits until it is open;
- memory is given back by a worker, since gigabytes take seconds.
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
    """None: in the process's own memory, as deltas are."""
    chunk_bytes: int
    arrival: int = 0
    comes_by_link: bool = False
    expected: tuple[str, ...] = ()
    """Hashes that chunks must have, if they are known already."""
    digests: dict[int, str] = field(default_factory=dict)
    """Of the chunks that are here."""
    filled_by: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def num_chunks(self) -> int:
        return -(-len(self.memory) // self.chunk_bytes)

    @property
    def hashes(self) -> tuple[str, ...]:
        """Of all chunks. `TornWeights` if one has not come, or was not right."""
        if len(self.digests) != self.num_chunks:
            raise TornWeights("not every chunk of it is here")
        return tuple(self.digests[index] for index in range(self.num_chunks))

    def chunk(self, index: int) -> memoryview:
        return self.memory[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]


class WeightBuffers:
    """The buffers of a relay, as a sink for links."""

    def __init__(
        self,
        tell: Callable[[ChunkHashed], None],
        submit: Callable[[Callable[[], None]], None],
        free: Callable[[Segment], None] = Segment.remove,
    ) -> None:
        """`submit`: to a worker, which opens and frees."""
        self._tell, self._submit, self._free = tell, submit, free
        self._buffers: dict[BufferId, WeightBuffer] = {}
        self._expected: dict[BufferId, int] = {}
        """The arrivals whose memory is being made."""
        self._dropped: list[WeightBuffer] = []
        self._changed = Condition()
        self.num_chunks = self.num_bytes = self.num_useless_chunks = 0
        """Chunks that came and were right; those that came although they were here already."""

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
        """True if it was expected still."""
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
            self._dropped.append(self._buffers.pop(buffer_id))  # and no other name keeps it here
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
                with suppress(OSError):  # it has ended by itself
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
        self._tell(ChunkHashed(arrival=arrival, buffer_id=buffer_id, index=index, digest=digest, is_torn=is_torn))

    def broken(self, link: socket.socket, buffer_id: BufferId, index: int) -> None:
        content = self._held_by(link, buffer_id, index)
        if content is not None:
            self._let_go(content, index, None)

    def _held_by(self, link: socket.socket, buffer_id: BufferId, index: int) -> WeightBuffer | None:
        """The buffer may have been dropped and another opened meanwhile: then this link has nothing to say."""
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
