"""Log lines become facts: each once, bounded, with dropped lines counted."""

import logging
from collections.abc import Iterator

import pytest

from engine.sinks.lines import BURST, LINES_A_SECOND, MOST_KEPT, SHIP_EVERY_S, LineKeeper, LineShippingSink
from engine.sinks.memory import MemorySink
from engine.spec.facts import LONGEST_LINE, MAX_LINES, DriverStarted, LogLines, RunFinished


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keeper(clock: Clock) -> LineKeeper:
    return LineKeeper("rollout/3", clock=clock)


@pytest.fixture
def log(keeper: LineKeeper) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.lines")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(keeper)
    yield logger
    logger.removeHandler(keeper)


def test_each_line_is_handed_out_once(keeper: LineKeeper, log: logging.Logger) -> None:
    log.info("loaded version=%d", 7)
    log.warning("slow")
    taken = keeper.take()
    assert taken is not None and taken.component == "rollout-3" and taken.num_dropped == 0
    assert [(line.level, line.message) for line in taken.lines] == [("info", "loaded version=7"), ("warning", "slow")]
    assert keeper.take() is None


def test_lines_beyond_the_rate_are_counted(keeper: LineKeeper, log: logging.Logger, clock: Clock) -> None:
    for at in range(int(BURST) + 30):
        log.info("line %d", at)
    clock.now += 1.0
    for at in range(int(LINES_A_SECOND) + 5):
        log.info("later %d", at)
    taken = list(iter(keeper.take, None))
    assert sum(each.num_dropped for each in taken) == 35
    assert sum(len(each.lines) for each in taken) == BURST + LINES_A_SECOND
    assert all(len(each.lines) <= MAX_LINES for each in taken)


def test_lines_that_are_never_taken_use_bounded_memory(keeper: LineKeeper, log: logging.Logger, clock: Clock) -> None:
    for _ in range(3 * MOST_KEPT):
        clock.now += 1.0
        log.info("x")
    taken = list(iter(keeper.take, None))
    assert sum(len(each.lines) for each in taken) == MOST_KEPT
    assert sum(each.num_dropped for each in taken) == 2 * MOST_KEPT


def test_traceback_keeps_its_end_without_control_characters(keeper: LineKeeper, log: logging.Logger) -> None:
    try:
        raise ValueError("the \x07reason\x1b[31m")
    except ValueError:
        log.exception("x" * LONGEST_LINE)
    taken = keeper.take()
    assert taken is not None
    [line] = taken.lines
    assert line.level == "error" and len(line.message) <= LONGEST_LINE
    assert line.message.endswith("ValueError: the \ufffdreason")


def test_arguments_that_do_not_fit_break_nothing(keeper: LineKeeper, log: logging.Logger) -> None:
    keeper.emit(logging.LogRecord("x", logging.INFO, "f", 1, "%d", ("no number",), None))
    assert keeper.take() is None


def test_driver_lines_are_recorded_before_facts_and_the_end(
    keeper: LineKeeper, log: logging.Logger, clock: Clock
) -> None:
    memory = MemorySink()
    sink = LineShippingSink(memory, keeper, clock=clock)
    log.info("one")
    sink.record(DriverStarted(host="h", pid=1))
    assert [body.type for body in memory.bodies] == ["driver_started"]
    clock.now += SHIP_EVERY_S
    sink.record(DriverStarted(host="h", pid=2))
    for at in range(int(BURST) - 1):
        log.info("line %d", at)
    log.info("last")
    sink.record(RunFinished(outcome="succeeded"))
    kinds = [body.type for body in memory.bodies]
    assert kinds[:3] == ["driver_started", "log_lines", "driver_started"] and kinds[-1] == "run_finished"
    shipped = [line.message for body in memory.bodies if isinstance(body, LogLines) for line in body.lines]
    assert shipped[0] == "one" and shipped[-1] == "last" and len(shipped) == BURST + 1
