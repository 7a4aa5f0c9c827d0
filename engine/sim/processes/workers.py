"""A process's worker threads: they do not block its loop, and each has its own signs of life.

Invariants:
- jobs start in order, each on the first free worker;
- a frozen process freezes its workers, and its death ends them; a hanging loop does not hang them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.policy.progress import Piece, Pulse
from engine.sim.kernel import Event, Kernel


@dataclass(slots=True)
class Job:
    what: str
    left: deque[float]
    then: Event


class Workers:
    def __init__(
        self, num: int, *, kernel: Kernel, is_alive: Callable[[], bool], frozen_until: Callable[[], float]
    ) -> None:
        self._kernel, self._is_alive, self._frozen_until = kernel, is_alive, frozen_until
        self._pulses = [Pulse() for _ in range(num)]
        self._free = deque(range(num))
        self._line: deque[Job] = deque()

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The current work of each worker, in their order."""
        return tuple(pulse.piece for pulse in self._pulses)

    def do(self, what: str, stretches: Sequence[float], then: Event) -> None:
        self._line.append(Job(what, deque(stretches), then))
        self._start_jobs()

    def _start_jobs(self) -> None:
        while self._free and self._line:
            self._continue(self._free.popleft(), self._line.popleft())

    def _continue(self, worker: int, job: Job) -> None:
        if not job.left:
            self._free.append(worker)
            job.then()
            self._start_jobs()
            return
        lasts_s = job.left.popleft()
        self._pulses[worker].begin(job.what)
        self._kernel.after(lasts_s, partial(self._end, worker, job))

    def _end(self, worker: int, job: Job) -> None:
        if not self._is_alive():
            return
        if self._frozen_until() > self._kernel.now:
            self._kernel.at(self._frozen_until(), partial(self._end, worker, job))
            return
        self._pulses[worker].end()
        self._continue(worker, job)
