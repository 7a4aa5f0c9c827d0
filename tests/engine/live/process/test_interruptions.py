"""Outside events that end an attempt, and requests that a run handles."""

import pytest

from engine.live.process.interruptions import (
    Cancelled,
    Fenced,
    Interruptions,
    OutOfTime,
    PausedEarly,
    RefusedByControlPlane,
)
from engine.process.progress import LoopProgress
from engine.sinks.control_plane import Refused, StaleFence
from engine.spec.control import ControlRequest

PAUSE = ControlRequest(id="p", kind="pause")
SMALLER = ControlRequest(id="s", kind="resize", replicas=1)
LARGER = ControlRequest(id="l", kind="resize", replicas=2)
CANCEL = ControlRequest(id="c", kind="cancel")


def interruptions_of(*batches: list[ControlRequest], max_runtime_s: float = 60.0) -> Interruptions:
    left = list(batches)
    return Interruptions(lambda: left.pop(0) if left else [], max_runtime_s=max_runtime_s)


def test_each_check_for_requests_is_a_sign_of_progress() -> None:
    progress, interruptions = LoopProgress(), interruptions_of()
    with progress.attached():
        for look in (interruptions.listen, interruptions.check):
            before = progress.piece.serial
            look()
            assert progress.piece.serial == before + 1


def test_run_gets_requests_in_their_order() -> None:
    interruptions = interruptions_of([SMALLER, PAUSE], [LARGER])
    assert [interruptions.listen() for _ in range(3)] == [[SMALLER, PAUSE], [LARGER], []]


def test_resize_is_kept_until_the_run_starts() -> None:
    interruptions = interruptions_of([SMALLER], [], [LARGER])
    interruptions.check()
    interruptions.check()
    assert interruptions.listen() == [SMALLER, LARGER]


def test_pause_ends_an_attempt_that_does_not_run_yet() -> None:
    with pytest.raises(PausedEarly) as paused:
        interruptions_of([SMALLER, PAUSE]).check()
    assert paused.value.request_id == "p"


def test_cancel_wins_over_an_earlier_pause() -> None:
    with pytest.raises(Cancelled) as cancelled:
        interruptions_of([PAUSE, CANCEL]).check()
    assert cancelled.value.request_id == "c"


@pytest.mark.parametrize(
    ("error", "end"), [(StaleFence("fence 2 runs"), Fenced), (Refused("heartbeat: 422"), RefusedByControlPlane)]
)
def test_refused_requests_end_the_attempt(error: Exception, end: type[Exception]) -> None:
    def requests() -> list[ControlRequest]:
        raise error

    with pytest.raises(end, match=str(error)):
        Interruptions(requests, max_runtime_s=60.0).check()


def test_job_whose_time_is_used_up_ends() -> None:
    with pytest.raises(OutOfTime):
        interruptions_of([SMALLER], max_runtime_s=0.0).listen()
