from engine.live.process.deadline import LOOK_UP_EVERY_S, AwakeDeadline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_deadline_ends_after_its_duration() -> None:
    clock = Clock()
    deadline = AwakeDeadline(10.0, clock)
    for _ in range(9):
        clock.now += 1.0
        assert deadline.left_s() > 0.0
    clock.now += 1.0
    assert deadline.left_s() == 0.0 and deadline.slice_s() == 0.0


def test_freeze_of_the_process_does_not_use_up_the_deadline() -> None:
    clock = Clock()
    deadline = AwakeDeadline(10.0, clock)
    clock.now += 1.0
    before_s = deadline.left_s()
    clock.now += 3_600.0
    assert deadline.left_s() == before_s
    clock.now += 1.0
    assert deadline.left_s() == before_s - 1.0


def test_polls_come_far_more_often_than_a_counted_pause() -> None:
    clock = Clock()
    deadline = AwakeDeadline(3.5, clock)
    slices = []
    while deadline.left_s():
        slices.append(deadline.slice_s())
        clock.now += slices[-1]
    assert sum(slices) == 3.5 and max(slices) <= LOOK_UP_EVERY_S
