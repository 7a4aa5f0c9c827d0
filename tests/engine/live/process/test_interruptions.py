"""What ends an attempt from outside, and which requests a run gets to obey."""

import pytest

from engine.live.process.interruptions import (
    Cancelled,
    Fenced,
    Interruptions,
    OutOfTime,
    PausedEarly,
    RefusedByControlPlane,
)
from engine.signs import Signs
from engine.sinks.control_plane import Refused, StaleFence
from engine.spec.control import ControlRequest

PAUSE = ControlRequest(id="p", kind="pause")
SMALLER = ControlRequest(id="s", kind="resize", replicas=1)
LARGER = ControlRequest(id="l", kind="resize", replicas=2)
CANCEL = ControlRequest(id="c", kind="cancel")


def told(*batches: list[ControlRequest], max_runtime_s: float = 60.0) -> Interruptions:
    left = list(batches)
    return Interruptions(lambda: left.pop(0) if left else [], max_runtime_s=max_runtime_s)


def test_every_look_for_requests_is_a_turn_of_the_drivers_loop() -> None:
    signs, interruptions = Signs(), told()
    with signs.heard_here():
        for look in (interruptions.listen, interruptions.check):
            before = signs.piece.serial
            look()
            assert signs.piece.serial == before + 1


def test_a_run_gets_requests_in_the_order_in_which_they_came() -> None:
    interruptions = told([SMALLER, PAUSE], [LARGER])
    assert [interruptions.listen() for _ in range(3)] == [[SMALLER, PAUSE], [LARGER], []]


def test_a_resize_waits_until_there_is_a_run_to_resize() -> None:
    interruptions = told([SMALLER], [], [LARGER])
    interruptions.check()
    interruptions.check()
    assert interruptions.listen() == [SMALLER, LARGER]


def test_a_pause_ends_what_does_not_run_yet() -> None:
    with pytest.raises(PausedEarly) as paused:
        told([SMALLER, PAUSE]).check()
    assert paused.value.request_id == "p"


def test_a_cancel_wins_over_a_pause_that_came_before() -> None:
    with pytest.raises(Cancelled) as cancelled:
        told([PAUSE, CANCEL]).check()
    assert cancelled.value.request_id == "c"


@pytest.mark.parametrize(
    ("error", "end"), [(StaleFence("fence 2 runs"), Fenced), (Refused("heartbeat: 422"), RefusedByControlPlane)]
)
def test_the_end_of_shipping_ends_the_attempt(error: Exception, end: type[Exception]) -> None:
    def requests() -> list[ControlRequest]:
        raise error

    with pytest.raises(end, match=str(error)):
        Interruptions(requests, max_runtime_s=60.0).check()


def test_a_job_whose_time_is_used_up_ends() -> None:
    with pytest.raises(OutOfTime):
        told([SMALLER], max_runtime_s=0.0).listen()
