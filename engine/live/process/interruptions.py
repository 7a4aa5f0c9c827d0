"""Interruptions: events from outside that end an attempt, as exceptions, the check for them that every long wait makes,
and the requests (pause, resize) that a run in progress obeys by itself.

Invariant: whoever waits calls `check` at least once a second, so a cancel works within seconds in every phase, and the
control plane sees by these calls that the driver's loop turns.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from engine.signs import still_here
from engine.sinks.control_plane import Refused, StaleFence
from engine.spec.control import ControlRequest

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_told: Final[list[int]] = []


class Interrupted(BaseException):
    """The process was told to end (SIGTERM, SIGINT)."""


def obey_signals() -> None:
    """SIGTERM and SIGINT are noted, and `check` raises `Interrupted`: an exception out of a signal handler may come up
    inside Ray, which loses it or makes another error of it. Call it again after `ray.init`, which installs handlers of
    its own that end the process with a stack trace and no word to anyone."""
    for number in _ENDING:
        signal.signal(number, _note)


def raise_on_signals() -> None:
    """For when Ray is gone and a wait does not look."""
    for number in _ENDING:
        signal.signal(number, _raise)


def was_told_to_end() -> bool:
    return bool(_told)


def _note(number: int, frame: FrameType | None) -> None:
    _told.append(number)


def _raise(number: int, frame: FrameType | None) -> None:
    for ignored in _ENDING:  # once is enough; a second must not break the cleaning up
        signal.signal(ignored, signal.SIG_IGN)
    raise Interrupted


class Ended(Exception):
    """The attempt is ended from outside."""

    retryable = False


class Fenced(Ended):
    """A newer attempt has taken over: nothing that this one says counts any more."""


class RefusedByControlPlane(Ended):
    """The control plane will never accept what this attempt reported."""


class OutOfTime(Ended):
    """The job has used up its max_runtime_s."""


class Cancelled(Ended):
    """Somebody asked for the job to be stopped."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


class PausedEarly(Ended):
    """Somebody asked for a pause before there was anything to be paused."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


class Interruptions:
    def __init__(self, requests: Callable[[], list[ControlRequest]], *, max_runtime_s: float) -> None:
        """`requests`: those that came since the last call; raises `StaleFence` or `Refused`."""
        self._requests = requests
        self._max_runtime_s = max_runtime_s
        self._deadline = time.monotonic() + max_runtime_s
        self._kept: list[ControlRequest] = []

    @property
    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raises what has come since the last call. A pause ends what is not running; a resize waits until it is."""
        requests = self.listen()
        self._kept += [request for request in requests if request.kind == "resize"]
        for request in requests:
            if request.kind == "pause":
                raise PausedEarly(request.id)

    def listen(self) -> list[ControlRequest]:
        """Raises what ends the attempt; the requests that came, in their order, for a run that can obey them."""
        still_here()
        if was_told_to_end():
            raise Interrupted
        requests, self._kept = [*self._kept, *self._arrived()], []
        for request in requests:
            if request.kind == "cancel":
                raise Cancelled(request.id)
        if time.monotonic() >= self._deadline:
            raise OutOfTime(f"its max_runtime_s is used up: this attempt had {self._max_runtime_s:.0f} s of it")
        return requests

    def _arrived(self) -> list[ControlRequest]:
        try:
            return self._requests()
        except StaleFence as error:
            raise Fenced(str(error)) from error
        except Refused as error:
            raise RefusedByControlPlane(str(error)) from error
