"""The memory of a relay's versions: a thread of its own opens, populates and frees it, since gigabytes take seconds.

    freed ──▶ a spare of the same size, with populated pages ──▶ the next version

Invariants:
- versions of a job have one size, so the spare fits the next version, and arriving bytes never wait for memory;
- a spare is as large as the segment freed before it, and no two segments have the same name;
- a segment that this process only adopted gets no spare: its creator allocates the next one.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from engine.live.weights.segments import Segment, release_pages
from engine.process.progress import worker_progress


class RelayMemory:
    def __init__(self, owner: str) -> None:
        """Called on the loop's thread."""
        self._owner = owner
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="relay-memory", initializer=worker_progress().attach_thread
        )
        self._spare: Segment | None = None
        self._makes_spares = True

    def submit(self, job: Callable[[], None]) -> None:
        """Runs a job on the memory thread."""
        self._thread.submit(job)

    def take(self, num_bytes: int) -> Segment:
        """Called on any other thread. Raises `OSError` if the host has no memory left."""
        segment: Future[Segment] = self._thread.submit(self.take_here, num_bytes)
        return segment.result()

    def take_here(self, num_bytes: int) -> Segment:
        """Called on the memory thread."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.shared.num_bytes == num_bytes:
            return spare
        if spare is not None:
            _free(spare)
        return Segment.create(self._owner, num_bytes)

    def free(self, segment: Segment) -> None:
        """Called on any other thread."""
        self._thread.submit(self.free_here, segment)

    def free_here(self, segment: Segment) -> None:
        """Called on the memory thread. Idempotent."""
        if segment.is_removed:
            return
        _free(segment)
        if self._makes_spares and segment.is_own and self._spare is None:
            with suppress(OSError):  # no memory left: the next `take` reports that
                self._spare = Segment.create(self._owner, segment.shared.num_bytes)

    def close(self) -> None:
        """Jobs that were submitted before run first."""
        self._makes_spares = False
        self._thread.submit(self._drop_spare).result()

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.remove()
        self._spare = None


def _free(segment: Segment) -> None:
    segment.remove()
    release_pages(segment.buffer)
