"""Seals of versions: sha256 of their chunks, computed in parallel by threads of idle priority.

Invariant: a version dropped meanwhile is not read any further and gets no seal.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256

from engine.live.relay.buffers import WeightBuffer
from engine.weights.hashes import HASHERS


class Sealers:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(
            max_workers=HASHERS, thread_name_prefix="relay-sealer", initializer=_lower_priority
        )

    def seal(self, content: WeightBuffer, is_here: Callable[[], bool], sealed: Callable[[str], None]) -> None:
        def of_chunk(index: int) -> bytes:
            return sha256(content.chunk(index)).digest() if is_here() else b""

        hashes = [self._threads.submit(of_chunk, index) for index in range(content.num_chunks)]
        self._threads.submit(self._finish, hashes, is_here, sealed)

    def _finish(
        self, hashes: list["Future[bytes]"], is_here: Callable[[], bool], sealed: Callable[[str], None]
    ) -> None:
        """Submitted after all chunks, so the chunks it waits for run on other threads or have ended."""
        digest = sha256(b"".join(chunk.result() for chunk in hashes)).hexdigest()
        if is_here():
            sealed(digest)


def _lower_priority() -> None:
    """Decoding, links and checks get cores first."""
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
