"""The memory of a relay's versions: opened, populated and freed by a thread of its own, since gigabytes take seconds.

    freed ──▶ a spare of the same size, whose pages are there ──▶ the next version's

Invariants:
- versions of a job are of one size: where one was, the next fits, and no memory is waited for while bytes come;
- a spare takes no more than what was freed for it, and another segment never gets the same name;
- memory of a version that this process only adopted is its maker's to make again.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from engine.live.weights.segments import Segment, let_go_of
from engine.signs import signs_beside


class RelayMemory:
    def __init__(self, owner: str) -> None:
        """On the loop's thread."""
        self._owner = owner
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="relay-memory", initializer=signs_beside().hear_this_thread
        )
        self._spare: Segment | None = None
        self._makes_spares = True

    def submit(self, job: Callable[[], None]) -> None:
        """To its thread."""
        self._thread.submit(job)

    def take(self, num_bytes: int) -> Segment:
        """For any other thread. Raises `OSError` if the host has no room."""
        taken: Future[Segment] = self._thread.submit(self.take_here, num_bytes)
        return taken.result()

    def take_here(self, num_bytes: int) -> Segment:
        """On its thread."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.shared.num_bytes == num_bytes:
            return spare
        if spare is not None:
            _free(spare)
        return Segment.create(self._owner, num_bytes)

    def free(self, segment: Segment) -> None:
        """For any other thread."""
        self._thread.submit(self.free_here, segment)

    def free_here(self, segment: Segment) -> None:
        """On its thread; nothing if it was done before."""
        if segment.is_removed:
            return
        _free(segment)
        if self._makes_spares and segment.is_own and self._spare is None:
            with suppress(OSError):  # then there is no room, and whoever needs it will say so
                self._spare = Segment.create(self._owner, segment.shared.num_bytes)

    def close(self) -> None:
        """What was given to it is done first."""
        self._makes_spares = False
        self._thread.submit(self._drop_spare).result()

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.remove()
        self._spare = None


def _free(segment: Segment) -> None:
    segment.remove()
    let_go_of(segment.buffer)
