"""Nudges Celery about new outbox rows, without ever making a request wait for the broker.

Invariants:
- `publish_soon` returns at once: it puts the ids into a bounded queue and drops them when the queue is full;
- one daemon thread per process publishes; a broker that is down or half-open blocks only that thread, and
  `dispatch_outbox` finds what the thread could not publish;
- the first nudge is sent at once; nudges in the moment after it are sent together, one message per subject.
"""

import logging
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from kombu.exceptions import OperationalError

from backend.celery import app

log = logging.getLogger(__name__)

DELIVER = "jobs.deliver"
_MOST_WAITING = 1_000  # far more than a burst of submissions; each entry is a short list of integers
# Sending a message takes a millisecond of the process' only Python thread, a fifth of a submission; a hundred
# submissions a second to one pool need one scheduling round, not a hundred.
_PAUSE_S: Final = 0.02
Nudge = tuple[str, Sequence[int]]

_waiting: queue.Queue[Nudge] = queue.Queue(maxsize=_MOST_WAITING)
_starting = threading.Lock()
_thread: threading.Thread | None = None


def publish_soon(ids: Sequence[int], subject: str) -> None:
    """Rows of one subject share a message: one delivery covers all of them."""
    _ensure_thread()
    try:
        _waiting.put_nowait((subject, ids))
    except queue.Full:
        log.warning("nudge dropped ids=%s; the dispatcher will find them", ids)


def publish_now(ids: Sequence[int]) -> None:
    """Raises kombu's OperationalError when the broker does not respond within its timeouts."""
    app.send_task(DELIVER, args=[list(ids)], retry=False, ignore_result=True)


def _ensure_thread() -> None:
    global _thread
    if _thread is not None and _thread.is_alive():
        return
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_publish_forever, name="outbox-nudge", daemon=True)
            _thread.start()


def _publish_forever() -> None:
    while True:
        for ids in _take_batches():
            try:
                publish_now(ids)
            except (OperationalError, OSError) as error:
                log.warning("nudge failed ids=%s error=%s; the dispatcher will find them", ids, error)
        time.sleep(_PAUSE_S)


def _take_batches() -> list[Sequence[int]]:
    """Blocks for the first nudge, then takes all that wait, grouped by subject."""
    waiting = _waiting
    nudges = [waiting.get()]
    nudges += [waiting.get_nowait() for _ in range(waiting.qsize())]  # the only consumer
    together: dict[str, list[int]] = defaultdict(list)
    for subject, ids in nudges:
        together[subject] += ids
    return list(together.values())


def _forget_thread() -> None:
    """A forked child must use neither the parent's thread nor the state of its lock and queue."""
    global _thread, _starting, _waiting
    _thread, _starting, _waiting = None, threading.Lock(), queue.Queue(maxsize=_MOST_WAITING)


os.register_at_fork(after_in_child=_forget_thread)
