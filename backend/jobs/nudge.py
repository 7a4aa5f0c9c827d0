"""The nudge that tells Celery about fresh outbox rows without ever making a request wait for the broker.

Invariants:
- `publish_soon` returns at once: it puts the ids into a bounded queue, and drops them when that is full;
- one daemon thread a process publishes; a broker that is down or half-open holds up that thread only, and what it
  fails to publish is found by `dispatch_outbox`;
- the first nudge leaves at once; those that come within a moment after it leave together, one message a subject.
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
# Sending a message costs a millisecond of the process' only Python, as much as a fifth of a submission; a hundred
# submissions a second to one pool need a round of its scheduler, and not a hundred.
_PAUSE_S: Final = 0.02
Nudge = tuple[str, Sequence[int]]

_waiting: queue.Queue[Nudge] = queue.Queue(maxsize=_MOST_WAITING)
_starting = threading.Lock()
_thread: threading.Thread | None = None


def publish_soon(ids: Sequence[int], subject: str) -> None:
    """Rows of one subject go into one message: one delivery is enough for all of them."""
    _ensure_thread()
    try:
        _waiting.put_nowait((subject, ids))
    except queue.Full:
        log.warning("nudge dropped ids=%s; the dispatcher will find them", ids)


def publish_now(ids: Sequence[int]) -> None:
    """Raises kombu's OperationalError when the broker does not answer within its timeouts."""
    app.send_task(DELIVER, args=[list(ids)], retry=False, ignore_result=True)


def _ensure_thread() -> None:
    global _thread
    if _thread is not None and _thread.is_alive():
        return
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_publish_for_ever, name="outbox-nudge", daemon=True)
            _thread.start()


def _publish_for_ever() -> None:
    while True:
        for ids in _all_waiting():
            try:
                publish_now(ids)
            except (OperationalError, OSError) as error:
                log.warning("nudge failed ids=%s error=%s; the dispatcher will find them", ids, error)
        time.sleep(_PAUSE_S)


def _all_waiting() -> list[Sequence[int]]:
    """All that waits now, by subject; waits for the first."""
    waiting = _waiting
    nudges = [waiting.get()]
    nudges += [waiting.get_nowait() for _ in range(waiting.qsize())]  # nobody else takes from it
    together: dict[str, list[int]] = defaultdict(list)
    for subject, ids in nudges:
        together[subject] += ids
    return list(together.values())


def _forget_thread() -> None:
    """A forked child has neither the thread nor a right to the lock's and the queue's state."""
    global _thread, _starting, _waiting
    _thread, _starting, _waiting = None, threading.Lock(), queue.Queue(maxsize=_MOST_WAITING)


os.register_at_fork(after_in_child=_forget_thread)
