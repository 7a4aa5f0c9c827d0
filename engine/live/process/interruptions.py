"""Interruptions: outside events that end an attempt, as exceptions; the check for them in every long wait; and the
requests (pause, resize) that a run in progress handles itself.

Invariant: every wait calls `check` at least once a second, so a cancel takes effect within seconds in every phase, and
the control plane sees from these calls that the driver's loop is alive.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from engine.process.progress import report_progress
from engine.sinks.control_plane import Refused, StaleFence
from engine.spec.control import ControlRequest

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_received: Final[list[int]] = []


class Interrupted(BaseException):
    """The process received SIGTERM or SIGINT."""


def obey_signals() -> None:
    """Records SIGTERM and SIGINT, so that `check` raises `Interrupted`: an exception from a signal handler may surface
    inside Ray, which loses or replaces it. Call this again after `ray.init`: Ray installs handlers that end the process
    with a stack trace and without a report."""
    for number in _ENDING:
        signal.signal(number, _note)


def raise_on_signals() -> None:
    """For waits without `check`, once Ray is gone."""
    for number in _ENDING:
        signal.signal(number, _raise)


def was_interrupted() -> bool:
    return bool(_received)


def _note(number: int, frame: FrameType | None) -> None:
    _received.append(number)


def _raise(number: int, frame: FrameType | None) -> None:
    for ignored in _ENDING:  # a second signal must not interrupt the clean-up
        signal.signal(ignored, signal.SIG_IGN)
    raise Interrupted


class Ended(Exception):
    """The attempt was ended from outside."""

    retryable = False


class Fenced(Ended):
    """A newer attempt has taken over; reports of this one are rejected."""


class RefusedByControlPlane(Ended):
    """The control plane will never accept what this attempt reported."""


class OutOfTime(Ended):
    """The job has used up its max_runtime_s."""


class Cancelled(Ended):
    """The job was cancelled on request."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


class PausedEarly(Ended):
    """A pause was requested before the run started."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


class Interruptions:
    def __init__(self, requests: Callable[[], list[ControlRequest]], *, max_runtime_s: float) -> None:
        """`requests`: returns those since the last call; raises `StaleFence` or `Refused`."""
        self._requests = requests
        self._max_runtime_s = max_runtime_s
        self._deadline = time.monotonic() + max_runtime_s
        self._kept: list[ControlRequest] = []

    @property
    def left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def check(self) -> None:
        """Raises for events since the last call. A pause ends an attempt that does not run yet; a resize is kept."""
        requests = self.listen()
        self._kept += [request for request in requests if request.kind == "resize"]
        for request in requests:
            if request.kind == "pause":
                raise PausedEarly(request.id)

    def listen(self) -> list[ControlRequest]:
        """Returns new requests in order, for a run that can handle them; raises for events that end the attempt."""
        report_progress()
        if was_interrupted():
            raise Interrupted
        requests, self._kept = [*self._kept, *self._fetch()], []
        for request in requests:
            if request.kind == "cancel":
                raise Cancelled(request.id)
        if time.monotonic() >= self._deadline:
            raise OutOfTime(f"max_runtime_s is used up; this attempt had {self._max_runtime_s:.0f} s of it")
        return requests

    def _fetch(self) -> list[ControlRequest]:
        try:
            return self._requests()
        except StaleFence as error:
            raise Fenced(str(error)) from error
        except Refused as error:
            raise RefusedByControlPlane(str(error)) from error
