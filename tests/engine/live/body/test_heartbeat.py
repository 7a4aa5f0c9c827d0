"""An actor's heartbeats report its loop's progress whatever the loop does: a part at long work is kept, a hanging one
is replaced.

Each heartbeat counts as one second for the manager.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from threading import Event
from typing import Any

import pytest

from engine.live.body import actor as actor_module
from engine.live.body.actor import BodyActor
from engine.live.body.heartbeat import Heartbeat
from engine.live.body.loop import Body, Brain
from engine.models import loading
from engine.models.loading import DEMO_FOLDER, load_decoder
from engine.pipeline.effects import Effect, EndPart, ReportProgress, StartPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.messages.to_manager import PartReported
from engine.policy.progress import LOOP
from engine.policy.recovery import Patience
from engine.process.progress import report_progress, working
from tests.engine.pipeline.brain_builders import of

PART = rollout_address(0)
PATIENCE = Patience(silent_s=20.0, start_s=30.0)
LONGER_THAN_EVER_S = 700
"""Longer than any limit for a part's silence."""


class OrdersWork:
    def handle(self, message: Message, now: float) -> list[Effect]:
        return [] if isinstance(message, Tick) else [ReportProgress(acknowledged=())]


class WorkingBody:
    tick_s = 0.01
    is_busy = False

    def __init__(self, work: Callable[[], None]) -> None:
        self.brain: Brain = OrdersWork()
        self._work = work

    def start(self) -> list[Message]:
        return [PartReported(part=PART, incarnation=0)]

    def perform(self, effect: Effect) -> list[Message]:
        self._work()
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []


class WorkingActor(BodyActor):
    def __init__(self, work: Callable[[], None], *, at_start: Callable[[], object] = lambda: None) -> None:
        self._work, self._at_start = work, at_start
        super().__init__(part=PART)

    def build(self) -> Body:
        self._at_start()
        return WorkingBody(self._work)

    def heartbeats(self) -> Iterator[PartReported]:
        while True:
            yield from (each for _, each in self._loop.outbox.collect(5.0) if isinstance(each, PartReported))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A heartbeat every millisecond, until the test is over."""
    begun: list[Heartbeat] = []

    def make(*arguments: object, **options: object) -> Heartbeat:
        begun.append(Heartbeat(*arguments, every_s=0.001, **options))  # type: ignore[arg-type]
        return begun[-1]

    monkeypatch.setattr(actor_module, "Heartbeat", make)
    yield
    for heartbeat in begun:
        heartbeat.stop()


def judged(actor: WorkingActor, *, until: Callable[[PartReported], bool], seconds: int) -> list[Effect]:
    """The manager's effects in so many seconds of the actor's heartbeats, from the first one that matches `until`."""
    heartbeats = actor.heartbeats()
    next(heartbeat for heartbeat in heartbeats if until(heartbeat))
    return effects_of(islice(heartbeats, seconds))


def judged_by_news(actor: WorkingActor, *, seconds: int) -> list[Effect]:
    """As `judged`, where progress comes as late as allowed: heartbeats without progress are left out, the others are
    repeated for twenty seconds."""
    return effects_of(heartbeat for news in islice(with_news(actor), seconds // 20) for heartbeat in [news] * 20)


def with_news(actor: WorkingActor) -> Iterator[PartReported]:
    serial = -1
    for heartbeat in actor.heartbeats():
        if heartbeat.piece.serial > serial:
            serial = heartbeat.piece.serial
            yield heartbeat


def effects_of(heartbeats: Iterable[PartReported]) -> list[Effect]:
    manager = ManagerBrain(num_replicas=1, now=0.0, patience=PATIENCE)
    done: list[Effect] = []
    for second, heartbeat in enumerate(heartbeats):
        done += manager.handle(heartbeat, float(second)) + manager.handle(Tick(), float(second))
    return done


def test_body_that_loads_longer_than_any_limit_is_kept() -> None:
    is_over = Event()

    def load() -> None:
        while not is_over.wait(0.001):
            with working("load"):
                pass

    done = judged_by_news(WorkingActor(lambda: None, at_start=load), seconds=LONGER_THAN_EVER_S)
    is_over.set()
    assert done == []


def test_loop_that_signs_while_it_waits_is_kept() -> None:
    is_over = Event()

    def wait() -> None:
        while not is_over.wait(0.001):
            report_progress()

    done = judged_by_news(WorkingActor(wait), seconds=LONGER_THAN_EVER_S)
    is_over.set()
    assert done == []


def test_loop_that_hangs_without_a_sign_is_replaced() -> None:
    is_over, is_stuck = Event(), Event()

    def hang() -> None:
        is_stuck.set()
        is_over.wait()

    actor = WorkingActor(hang)
    assert is_stuck.wait(60.0)
    done = judged(actor, until=lambda heartbeat: heartbeat.piece.what == LOOP, seconds=40)
    is_over.set()
    assert of(done, EndPart) == [EndPart(part=PART, incarnation=0)]
    assert of(done, StartPart) == [StartPart(part=PART, incarnation=1)]


def test_model_load_that_hangs_is_replaced_in_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk stops answering in the middle of the real loader."""
    is_over, num_read, is_stuck = Event(), [0], Event()
    fill = loading._fill_tensor

    def hang(*arguments: Any) -> None:
        num_read[0] += 1
        if num_read[0] == 7:
            with working("load"):
                is_stuck.set()
                is_over.wait()
        fill(*arguments)

    monkeypatch.setattr(loading, "_fill_tensor", hang)
    actor = WorkingActor(lambda: None, at_start=lambda: load_decoder(DEMO_FOLDER, device="cpu"))
    assert is_stuck.wait(60.0)
    done = judged(actor, until=lambda heartbeat: heartbeat.piece.what == "load", seconds=130)
    is_over.set()
    assert of(done, EndPart) == [EndPart(part=PART, incarnation=0)]
    assert "in: load" in of(done, FaultReported)[0].message


def test_start_in_opaque_code_is_kept_while_it_moves() -> None:
    is_over = Event()

    def call(path: int) -> None:
        """Makes a different call stack for each path."""
        if path <= 1:
            is_over.wait(0.001)
        else:
            (call if path % 2 else other)(path // 2)

    def other(path: int) -> None:
        call(path)

    def compile_much() -> None:
        path = 1
        while not is_over.is_set():
            path += 1
            call(path)

    done = judged_by_news(WorkingActor(lambda: None, at_start=compile_much), seconds=LONGER_THAN_EVER_S)
    is_over.set()
    assert done == []


def test_idle_loop_still_signs() -> None:
    assert judged_by_news(WorkingActor(lambda: None), seconds=LONGER_THAN_EVER_S) == []
