"""Calls into the sandbox on behalf of a grader: a fault there is a `GraderError`, never a reward of 0."""

from collections.abc import Sequence
from pathlib import Path

from engine.environments.port import FailureKind, GraderError
from engine.environments.sandbox.command import require_bubblewrap
from engine.environments.sandbox.outcome import Limits, OutOfMemory, TimedOut
from engine.environments.sandbox.worker import CallFailed, WorkerPool

_INSIDE = Path(__file__).parent / "sandbox" / "inside"


def inside_file(name: str) -> str:
    return (_INSIDE / name).read_text()


class SandboxedGrader:
    """Functions of one file, called in warm sandboxed processes. For any number of threads.

    `timeout_s` bounds a call with its wait for a free process, `call_s` the call alone.
    """

    def __init__(
        self,
        *,
        main: str,
        timeout_s: float,
        call_s: float | None = None,
        memory_bytes: int = 512 << 20,
        packages: Sequence[str] = (),
        forks: bool = False,
        size: int = 1,
    ) -> None:
        require_bubblewrap()
        self._timeout_s, self._call_s = timeout_s, call_s
        limits = Limits(wall_s=timeout_s, memory_bytes=memory_bytes)
        self._pool = WorkerPool(files={"main.py": main}, limits=limits, packages=packages, forks=forks, size=size)

    def call(self, function: str, *arguments: object) -> object:
        try:
            return self._pool.call(function, *arguments, deadline_s=self._timeout_s, call_s=self._call_s)
        except CallFailed as error:
            raise grader_error(function, error) from error


def grader_error(what: str, error: CallFailed) -> GraderError:
    """A process that ended may do better next time; code that raised will raise again, and a hunger stays."""
    outcome = error.outcome
    hopeless = outcome is None or isinstance(outcome, OutOfMemory)
    hopeless = hopeless or (isinstance(outcome, TimedOut) and outcome.clock == "cpu")
    kind: FailureKind = "timeout" if isinstance(outcome, TimedOut) else "error"
    return GraderError(f"{what}: {error}", retryable=not hopeless, kind=kind)
