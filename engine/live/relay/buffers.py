"""The memory of a relay: buffers that are here and buffers that arrive, chunk by chunk, from several links at once.

    buffer: expected ──a worker has the memory──▶ open ──▶ dropped
    chunk: absent ──room──▶ filling ──arrived, hashed──▶ here
                              └──broken, or with another hash──▶ absent

Invariants:
- a chunk that is here is never written again, and one that is filling is written by one link only: who comes with the
  same chunk takes it over from a link that stalls, and waits until that one has let go;
- a link that comes with a chunk for a buffer that is expected waits until it is open;
- memory is given back by a worker, since gigabytes take seconds.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Condition
from typing import Final, Literal

from engine.live.weights.segments import Segment
from engine.pipeline.effects import OpenBuffer
from engine.pipeline.messages.to_relay import ChunkHashed
from engine.weights.port import BufferId

LET_GO_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class WeightBuffer:
    memory: memoryview
    segment: Segment | None
    """None: in the process's own memory, as deltas are."""
    chunk_bytes: int
    arrival: int = 0
    expected: tuple[str, ...] = ()
    states: dict[int, Literal["filling", "here"]] = field(default_factory=dict)
    filled_by: dict[int, socket.socket] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Every chunk came, and was right."""
        return all(self.states.get(index) == "here" for index in range(len(self.expected)))

    def chunk(self, index: int) -> memoryview:
        return self.memory[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]


class WeightBuffers:
    """The buffers of a relay, as a sink for links."""

    def __init__(self, tell: Callable[[ChunkHashed], None], submit: Callable[[Callable[[], None]], None]) -> None:
        """`submit`: to a worker."""
        self._tell, self._submit = tell, submit
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
            expected=effect.chunk_sha256,
        )
        with self._changed:
            if self.expect_no_more(effect):
                self.put(effect.buffer_id, content)
                return
        _remove(content)

    def drop(self, buffer_id: BufferId) -> None:
        with self._changed:
            self._expected.pop(buffer_id, None)
            self._let_go_of(buffer_id)
            self._changed.notify_all()

    def drop_all(self) -> None:
        for buffer_id in list(self._buffers):
            self.drop(buffer_id)
        self._give_back()

    def _let_go_of(self, buffer_id: BufferId) -> None:
        if buffer_id in self._buffers:
            self._dropped.append(self._buffers.pop(buffer_id))  # and no other name keeps it here
            self._submit(self._give_back)

    def _give_back(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, []
        for content in dropped:
            _remove(content)

    # ── links ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def room(self, link: socket.socket, buffer_id: BufferId, index: int, num_bytes: int) -> memoryview | None:
        with self._changed:
            self._changed.wait_for(lambda: buffer_id not in self._expected)
            content = self._buffers.get(buffer_id)
            if content is None or index >= len(content.expected) or len(content.chunk(index)) != num_bytes:
                return None
            holder = content.filled_by.get(index)
            if holder is not None:
                with suppress(OSError):  # it has ended by itself
                    holder.shutdown(socket.SHUT_RDWR)
                self._changed.wait_for(lambda: index not in content.filled_by, LET_GO_S)
            if index in content.states:
                self.num_useless_chunks += content.states[index] == "here"
                return None
            content.states[index], content.filled_by[index] = "filling", link
            return content.chunk(index)

    def arrived(self, link: socket.socket, buffer_id: BufferId, index: int) -> None:
        content = self._held_by(link, buffer_id, index)
        if content is None:
            return
        digest = sha256(content.chunk(index)).hexdigest()
        is_right = digest == content.expected[index]
        self._let_go(content, index, is_here=is_right)
        self._tell(ChunkHashed(arrival=content.arrival, buffer_id=buffer_id, index=index, sha256=digest))

    def broken(self, link: socket.socket, buffer_id: BufferId, index: int) -> None:
        content = self._held_by(link, buffer_id, index)
        if content is not None:
            self._let_go(content, index, is_here=False)

    def _held_by(self, link: socket.socket, buffer_id: BufferId, index: int) -> WeightBuffer | None:
        """The buffer may have been dropped and another opened meanwhile: then this link has nothing to say."""
        content = self._buffers.get(buffer_id)
        return content if content is not None and content.filled_by.get(index) is link else None

    def _let_go(self, content: WeightBuffer, index: int, *, is_here: bool) -> None:
        with self._changed:
            content.filled_by.pop(index, None)
            if is_here:
                content.states[index] = "here"
                self.num_chunks += 1
                self.num_bytes += len(content.chunk(index))
            else:
                content.states.pop(index, None)
            self._changed.notify_all()


def _remove(content: WeightBuffer) -> None:
    if content.segment is not None:
        content.segment.remove()
