"""Calls into the sandbox on behalf of a grader, and the blame for calls that return no value.

    the sandbox did not start           `GraderError`, the platform's fault
    the judged text broke the call      `SpoiltByText`: reward 0
    the host had no core for the call   `GraderError`, `platform`: retried, not credited
    everything else                     `GraderError`, never a reward of 0

If a text that breaks its judge had no reward, a model could choose when it is judged.

Invariant: a text is blamed only where every call has a process of its own, and only if that process raised, crashed,
or used up its memory or its processor time. Time while other processes had the processor is blamed on no text: a call
that never got enough of the processor has no verdict, and the platform retries it.

The queue of a judge:
- it has no deadline of its own: a text waits as long as the texts before it take;
- the allowance of processor time shrinks as the queue grows, down to what no honest answer needs;
- a text that broke the judge once, or used up its allowance, is not judged again: its reward is 0.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from engine.environments.judging.digests import Digests
from engine.environments.port import Blame, FailureKind, GraderError, Verdict
from engine.environments.sandbox.command import require_bubblewrap
from engine.environments.sandbox.excuses import room_in
from engine.environments.sandbox.host_speed import host_scale
from engine.environments.sandbox.outcome import Limits, Outcome, OutOfMemory, Refused, Starved, TimedOut
from engine.environments.sandbox.worker import CallFailed, WorkerPool

_INSIDE = Path(__file__).parents[1] / "sandbox" / "inside"
MOST_CPU_S: Final = 5.0  # honest answers take milliseconds; a hanging one must not block the others for a minute
LEAST_CPU_S: Final = 1.0  # in a long queue. The slowest honest answer that we know of takes 0.03 s
CPU_SHARE: Final = 1 / 2  # of a call's own time, so that the text's limit is reached before the call's


def inside_file(name: str) -> str:
    return (_INSIDE / name).read_text()


class SpoiltByText(Exception):
    """The judged text broke its judge."""

    @property
    def verdict(self) -> Verdict:
        return Verdict(reward=0.0, parts={}, trusted=True, remark=f"the answer could not be judged: {self}"[:500])


class SandboxedGrader:
    """Functions of one file, called in warm sandboxed processes. Safe for any number of threads.

    `timeout_s` bounds a call's own time.
    """

    def __init__(
        self,
        *,
        main: str,
        timeout_s: float,
        memory_bytes: int = 512 << 20,
        packages: Sequence[str] = (),
        imports: Mapping[str, str] | None = None,
        forks: bool = False,
        size: int = 1,
        most: int = 0,
    ) -> None:
        """`imports`: files that `main` may import. `most`: processes at most, once calls wait for sleeping ones."""
        require_bubblewrap()
        self._timeout_s = timeout_s
        limits = Limits(wall_s=timeout_s, memory_bytes=memory_bytes)
        files = {"main.py": main, **(imports or {})}
        self._pool = WorkerPool(files=files, limits=limits, packages=packages, forks=forks, size=size, most=most)

    def call(self, function: str, *arguments: object) -> object:
        try:
            return self._pool.call(function, *arguments, deadline_s=self._timeout_s)
        except CallFailed as error:
            raise grader_error(function, error) from error


class TextJudge:
    """A function of one of our files that judges a model's text, each call in a process of its own."""

    def __init__(
        self,
        *,
        main: str,
        function: str,
        timeout_s: float,
        memory_bytes: int = 512 << 20,
        packages: Sequence[str] = (),
        imports: Sequence[str] = (),
        size: int,
    ) -> None:
        """`imports`: names of files in `sandbox/inside` that `main` may import."""
        require_bubblewrap()
        self._function, self._timeout_s = function, timeout_s
        self._cpu_s = min(MOST_CPU_S, CPU_SHARE * timeout_s)
        files = {"main.py": main, **{name: inside_file(name) for name in ("judging.py", *imports)}}
        limits = Limits(wall_s=timeout_s, memory_bytes=memory_bytes)
        self._pool = WorkerPool(files=files, limits=limits, packages=packages, forks=True, size=size)
        self._size, self._room = size, threading.BoundedSemaphore(size)
        self._lock, self._num_waiting = threading.Lock(), 0
        self._spoilt = Digests()

    def judge(self, *arguments: object) -> object:
        """Raises `SpoiltByText` or `GraderError`."""
        with self._lock:
            self._num_waiting += 1
        try:
            with room_in(self._room):
                return self._call(arguments)
        finally:
            with self._lock:
                self._num_waiting -= 1

    def _call(self, arguments: tuple[object, ...]) -> object:
        if arguments in self._spoilt:
            raise SpoiltByText("it could not be judged before")
        cpu_s = allowance_s(self._cpu_s, num_waiting=self._num_waiting, size=self._size) * host_scale()
        try:
            return self._pool.call(self._function, *arguments, cpu_s, deadline_s=self._timeout_s)
        except CallFailed as error:
            is_its_own = error.has_raised or isinstance(error.outcome, OutOfMemory)
            if is_its_own:
                self._spoilt.add(*arguments)
                raise SpoiltByText(error.last_line) from error
            raise grader_error(self._function, error) from error


def allowance_s(most_s: float, *, num_waiting: int, size: int) -> float:
    """Processor time of a text that starts now: `num_waiting` texts, this one included, share `size` processes."""
    return max(min(LEAST_CPU_S, most_s), most_s * min(1.0, size / num_waiting))


def grader_error(what: str, error: CallFailed) -> GraderError:
    """Retryable if the process ended. Not if the code raised or used up its memory or own time: it would again."""
    outcome = error.outcome
    is_final = outcome is None or isinstance(outcome, OutOfMemory | TimedOut)
    kind: FailureKind = "timeout" if isinstance(outcome, TimedOut | Starved) else "error"
    return GraderError(f"{what}: {error}", retryable=not is_final, kind=kind, blame=blame_for(outcome))


def blame_for(outcome: Outcome | None) -> Blame:
    """A starved host is not credited: the job's own programs may take its cores."""
    match outcome:
        case Refused():
            return "infrastructure"
        case Starved():
            return "platform"
        case _:
            return "reward"
