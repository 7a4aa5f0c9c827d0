"""A worker allocates a relay's memory: early chunks wait for it, and memory of a dropped buffer is freed."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.live.relay.buffers import WeightBuffers
from engine.live.weights.segments import FOLDER, Segment
from engine.pipeline.effects import OpenBuffer
from engine.pipeline.messages.to_relay import ChunkHashed
from engine.policy.lineage import WeightsId
from engine.weights.hashes import hash_of
from engine.weights.port import BufferId

WHOLE = BufferId(weights=WeightsId(0, 1))
CONTENT = b"chunk of weights"


def opened(arrival: int) -> OpenBuffer:
    return OpenBuffer(
        arrival=arrival,
        buffer_id=WHOLE,
        num_bytes=len(CONTENT),
        chunk_bytes=len(CONTENT),
        chunk_hashes=(hash_of(CONTENT),),
    )


class Worker:
    """Runs its jobs when `work` is called."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def work(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


@pytest.fixture
def link() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    yield ours
    ours.close()
    theirs.close()


def test_chunk_waits_until_its_buffer_has_memory(link: socket.socket) -> None:
    received: list[ChunkHashed] = []
    worker = Worker()
    buffers = WeightBuffers(received.append, worker.jobs.append)
    buffers.expect(opened(1))
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(buffers.room, link, WHOLE, 0, len(CONTENT))
        buffers.open(opened(1), memoryview(bytearray(len(CONTENT))), None)
        room = early.result(timeout=60.0)
    assert room is not None
    room[:] = CONTENT
    buffers.arrived(link, WHOLE, 0, hash_of(CONTENT), is_torn=False)
    assert [hashed.arrival for hashed in received] == [1]


@pytest.mark.parametrize("how", ["dropped", "refused"])
def test_chunk_stops_waiting_when_its_buffer_is_abandoned(link: socket.socket, how: str) -> None:
    buffers = WeightBuffers(lambda hashed: None, Worker().jobs.append)
    buffers.expect(opened(1))
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(buffers.room, link, WHOLE, 0, len(CONTENT))
        if how == "dropped":
            buffers.drop(WHOLE)
        else:
            buffers.expect_no_more(opened(1))
        assert early.result(timeout=60.0) is None


def test_memory_of_a_dropped_arrival_is_freed_and_next_is_kept() -> None:
    worker = Worker()
    buffers = WeightBuffers(lambda hashed: None, worker.jobs.append)
    first, second = (Segment.create("test", len(CONTENT)) for _ in range(2))
    buffers.expect(opened(1))
    buffers.drop(WHOLE)
    buffers.expect(opened(2))
    buffers.open(opened(1), first.buffer, first)
    assert not (FOLDER / first.shared.name).exists() and buffers.get(WHOLE) is None
    buffers.open(opened(2), second.buffer, second)
    content = buffers.get(WHOLE)
    assert content is not None and content.segment is second
    del content
    buffers.drop(WHOLE)
    worker.work()
    assert not (FOLDER / second.shared.name).exists()
