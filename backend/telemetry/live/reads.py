"""What live sockets read, each kind in batches."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from weakref import WeakKeyDictionary

from backend.accounts.sessions.rights import SessionRights, rights_of
from backend.jobs.selectors import WatchedJob, watched_jobs
from backend.ports import Port
from backend.telemetry.live.batched import Batched

JobSince = tuple[str, int]
"""A job, and the cursor that its page has."""

news_text: Final[Port[Callable[[str, int], str | None]]] = Port("a job's news since a cursor, for open pages")

MOST_KEYS = 500
MOST_NEWS = 4  # jobs whose news are read at a time: Python reads no more in parallel, and a slow one delays few


class Reads:
    def __init__(self) -> None:
        threads = ThreadPoolExecutor(MOST_NEWS + 2, thread_name_prefix="live-read")
        self.rights: Batched[str, SessionRights] = Batched(rights_of, threads, most_keys=MOST_KEYS, most_calls=1)
        self.jobs: Batched[str, WatchedJob] = Batched(watched_jobs, threads, most_keys=MOST_KEYS, most_calls=1)
        self.news: Batched[JobSince, str] = Batched(_news_of_one, threads, most_keys=1, most_calls=MOST_NEWS)


def _news_of_one(wanted: Sequence[JobSince]) -> dict[JobSince, str]:
    texts = {key: news_text()(*key) for key in wanted}
    return {key: text for key, text in texts.items() if text is not None}


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Reads] = WeakKeyDictionary()


def reads() -> Reads:
    """Of this process: one event loop, one set of batches."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = Reads()
    return _of_loops[loop]
