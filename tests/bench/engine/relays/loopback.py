"""The loopback's own limit for a chain: bytes passed on from process to process, with nothing else done to them.

    first ──▶ hop: what came is sent while the next piece comes ──▶ hop ──▶ … ──▶ last

No hash, no frame, no memory to be opened: what comes goes round in a buffer that no cache holds.
"""

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Final

RING_BYTES: Final = 64 * 2**20
PIECE_BYTES: Final = 2**20
WITHIN_S: Final = 60.0


@contextmanager
def chain(num_hops: int) -> Iterator[Callable[[int], float]]:
    """What takes the seconds from the first process's first byte to the last one's last, over so many hops."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(num_hops + 1)]
    processes = [
        context.Process(target=_be_a_hop, args=(far, at > 0), daemon=True) for at, (_, far) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    near = [pipe for pipe, _ in pipes]
    ports = [pipe.recv() for pipe in near]
    for pipe, port_after in zip(near, [*ports[1:], None], strict=True):
        pipe.send(port_after)

    def run(num_bytes: int) -> float:
        started = time.perf_counter()
        for pipe in near:
            pipe.send(num_bytes)
        near[-1].recv()
        taken = time.perf_counter() - started
        for pipe in near[:-1]:
            pipe.recv()
        return taken

    try:
        yield run
    finally:
        for pipe in near:
            pipe.send(0)
        for process in processes:
            process.join(WITHIN_S)


def _be_a_hop(pipe: Connection, receives: bool) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    pipe.send(server.getsockname()[1])
    port_after = pipe.recv()
    after = None if port_after is None else socket.create_connection(("127.0.0.1", port_after))
    before = server.accept()[0] if receives else None
    ring = memoryview(bytearray(b"\1") * RING_BYTES)
    while num_bytes := pipe.recv():
        _pass_on(before, after, ring, num_bytes)
        pipe.send("done")


def _pass_on(before: socket.socket | None, after: socket.socket | None, ring: memoryview, num_bytes: int) -> None:
    num_pieces = -(-num_bytes // PIECE_BYTES)
    pieces = [ring[at : at + PIECE_BYTES] for at in range(0, len(ring), PIECE_BYTES)]
    full: SimpleQueue[memoryview] = SimpleQueue()
    free: SimpleQueue[memoryview] = SimpleQueue()
    for piece in pieces:
        free.put(piece)

    def receive() -> None:
        for _ in range(num_pieces):
            piece = free.get()
            filled = 0
            while before is not None and filled < len(piece):
                filled += before.recv_into(piece[filled:])
            full.put(piece)

    receiver = Thread(target=receive)
    receiver.start()
    for _ in range(num_pieces):
        piece = full.get()
        if after is not None:
            after.sendall(piece)
        free.put(piece)
    receiver.join()
