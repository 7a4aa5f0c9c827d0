"""Fetches keys and values of handed-over samples on the host replica, in parallel with its loop.

    loop: fetch ─▶ worker: call the source ─▶ arrived, for each sample with complete pages ─▶ … ─▶ ended

Invariants:
- all pages of a sample arrive, or none;
- a fetch always ends, whatever happens to the source or the link; after that no sample waits for pages;
- if both replicas see the same shared memory, pages are mapped, and the link carries only marks.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from engine.inference.port import KvPages
from engine.live.body.loop import BodyCall
from engine.live.kv.offers import Offered
from engine.live.kv.wire import Deadline, Head, acknowledge, read_head, request, take
from engine.live.weights.link import call
from engine.live.weights.segments import SharedBytes, map_shared, own_memory
from engine.pipeline.messages.message import Message
from engine.process.progress import worker_progress, working

log = logging.getLogger(__name__)

# A stalled source blocks one worker; more workers would only share the same link.
WORKERS: Final = 2


class Fetches:
    def __init__(self, *, token: bytes, on_loop: Callable[[BodyCall], None]) -> None:
        """`on_loop` calls a body that has `on_pages` and `on_pages_ended`."""
        self._token, self._on_loop = token, on_loop
        self._memory = own_memory()
        progress = [worker_progress() for _ in range(WORKERS)]
        self._workers = ThreadPoolExecutor(
            WORKERS, thread_name_prefix="kv-fetch", initializer=lambda: progress.pop().attach_thread()
        )

    def fetch(self, offered: Offered) -> None:
        self._workers.submit(self._fetch, offered)

    def _fetch(self, offered: Offered) -> None:
        try:
            for sample, pages in pages_of(offered, self._token, memory=self._memory):
                self._on_loop(partial(_deliver_pages, offered.name, sample, pages))
        except Exception as error:  # noqa: BLE001 - after any error the pages are recomputed from the tokens
            log.warning("cannot fetch keys and values, they are recomputed: %s: %s", type(error).__name__, error)
        finally:
            self._on_loop(lambda body: body.on_pages_ended(offered.name))


def pages_of(offered: Offered, token: bytes, *, memory: str) -> Iterator[tuple[int, KvPages]]:
    """`memory`: the shared memory that this process sees."""
    with call(offered.reach, token) as link:
        request(link, offered.name, memory)
        while (head := read_head(link)) is not None:
            room = _allocate(head, memory)
            deadline = Deadline(head.num_bytes)
            num_filled = 0
            while num_filled < head.num_bytes:
                with working("receive"):
                    num_filled += take(link, room[num_filled:], deadline, is_shared=head.shared is not None)
            yield head.sample, head.pages(room)
        acknowledge(link)


def _allocate(head: Head, memory: str) -> memoryview:
    if head.shared is not None:
        return map_shared(SharedBytes(name=head.shared, num_bytes=head.num_bytes, memory=memory))
    return np.empty(head.num_bytes, dtype=np.uint8).data


def _deliver_pages(name: bytes, sample: int, pages: KvPages, body: Any) -> list[Message]:
    messages: list[Message] = body.on_pages(name, sample, pages)
    return messages
