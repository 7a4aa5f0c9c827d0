"""A checkpoint written in parallel with training reports progress; a trainer on a hanging disk is replaced.

One heartbeat counts as one second, as in `tests/engine/live/body/test_heartbeat.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event

import pytest

from engine.live.body.heartbeat import Heartbeat
from engine.live.body.loop import Body, Loop
from engine.live.checkpoints import writer as writer_module
from engine.live.checkpoints.writer import CheckpointWriter
from engine.pipeline.effects import Effect, EndPart
from engine.pipeline.manager.brain import ManagerBrain
from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_manager import PartReported
from engine.pipeline.records import DataProgress
from engine.policy.progress import LOOP
from engine.policy.recovery import Patience
from engine.process.progress import working
from engine.training.checkpoint.folder import write_checkpoint
from tests.engine.pipeline.brain_builders import of

PROGRESS = DataProgress(ended=(), ledger=())
MEGABYTES = 64
LONGER_THAN_EVER_S = 700


class Idle:
    def handle(self, message: Message, now: float) -> list[Effect]:
        return []


class SavingBody:
    """Writes checkpoints one after the other from its start on."""

    tick_s = 0.01
    is_busy = False

    def __init__(self, *writes: Callable[[Path], None], root: Path) -> None:
        self.brain = Idle()
        self._writes, self._root = writes, root
        self._writer = CheckpointWriter(lambda result: None)

    def start(self) -> list[Message]:
        for step, write in enumerate(self._writes):
            folder = self._root / f"step-{step:06d}"
            self._writer.put(partial(partial, write, folder), folder, step=step, progress=PROGRESS)
        return []

    def perform(self, effect: Effect) -> list[Message]:
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []


@pytest.fixture
def heartbeats_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Iterator[PartReported]]]:
    monkeypatch.setattr(writer_module, "LOOK_UP_EVERY_S", 0.001)
    begun: list[Heartbeat] = []

    def listen(*writes: Callable[[Path], None]) -> Iterator[PartReported]:
        def build() -> Body:
            return SavingBody(*writes, root=tmp_path)

        loop = Loop(name="trainer", build=build, send=lambda to, message: None)
        begun.append(Heartbeat(loop, part=TRAINER, incarnation=0, every_s=0.001))
        begun[0].start()
        while True:
            yield from (each for _, each in loop.outbox.collect(5.0) if isinstance(each, PartReported))

    yield listen
    for heartbeat in begun:
        heartbeat.stop()


def large(folder: Path) -> None:
    write_checkpoint(folder, {"weights.bin": lambda file: _write(file, b"w" * MEGABYTES * 2**20)})


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def decided(heartbeats: Iterable[PartReported]) -> list[Effect]:
    manager = ManagerBrain(now=0.0, incarnations={TRAINER: 0}, patience=Patience(silent_s=20.0))
    done: list[Effect] = []
    for second, heartbeat in enumerate(heartbeats):
        done += manager.handle(heartbeat, float(second)) + manager.handle(Tick(), float(second))
    return done


def as_late_as_they_may(heartbeats: Iterator[PartReported]) -> Iterator[PartReported]:
    """Only heartbeats with progress, each repeated for twenty seconds."""
    serial = -1
    for heartbeat in heartbeats:
        if heartbeat.piece.serial > serial:
            serial = heartbeat.piece.serial
            yield from [heartbeat] * 20


def test_checkpoint_write_and_read_back_report_progress(
    heartbeats_of: Callable[..., Iterator[PartReported]],
) -> None:
    serials: list[int] = []
    for heartbeat in islice(heartbeats_of(large), 60_000):
        assert heartbeat.piece.what in (LOOP, "start", "the disk")
        serials += [piece.serial for piece in heartbeat.worker_pieces]
        if serials and serials[-1] > 2 * MEGABYTES:  # two progress for each megabyte that is read back
            break
    assert serials[-1] > 2 * MEGABYTES and len(set(serials)) > 5, "progress comes in small steps"


def test_trainer_that_waits_for_a_hanging_disk_is_replaced(
    heartbeats_of: Callable[..., Iterator[PartReported]],
) -> None:
    is_over = Event()

    def hang(folder: Path) -> None:
        is_over.wait()

    heartbeats = heartbeats_of(hang, hang, hang)
    next(heartbeat for heartbeat in heartbeats if heartbeat.piece.what == "the disk")
    done = decided(islice(heartbeats, 450))
    is_over.set()
    assert of(done, EndPart) == [EndPart(part=TRAINER, incarnation=0)]


def test_trainer_that_waits_for_a_slow_disk_is_kept(
    heartbeats_of: Callable[..., Iterator[PartReported]],
) -> None:
    is_over = Event()

    def write_slowly(folder: Path) -> None:
        while not is_over.wait(0.001):
            with working("write"):
                pass

    heartbeats = heartbeats_of(write_slowly, write_slowly, write_slowly)
    next(heartbeat for heartbeat in heartbeats if heartbeat.piece.what == "the disk")
    done = decided(islice(as_late_as_they_may(heartbeats), LONGER_THAN_EVER_S))
    is_over.set()
    assert done == []
