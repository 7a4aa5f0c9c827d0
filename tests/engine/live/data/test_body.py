"""Data's body: the rare syncs of its log, and the disk waits that it reports, since others write to the same disk."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from engine.live.body.loop import Loop
from engine.live.data.actor import DataBody
from engine.live.data.journal_file import JournalFile
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Effect, Persist
from engine.pipeline.journal import Record, StepTrained
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_data import BatchWanted, Persisted
from engine.policy.progress import SLOWEST_SYNC_S
from engine.policy.recovery import Patience
from engine.process.progress import LoopProgress
from tests.engine.pipeline.brain_builders import PLAN


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_disk_waits_may_last_as_long_as_the_slowest_wait(
    with_snapshot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = LoopProgress()
    allowed_s: list[float] = []
    loop = threading.get_ident()

    def spy_on(call: str) -> None:
        real = getattr(os, call)

        def spy(*arguments: object, **options: object) -> object:
            piece = progress.piece if threading.get_ident() == loop else progress.worker_pieces[0]
            allowed_s.append(Patience().standstill_s(piece))
            return real(*arguments, **options)

        monkeypatch.setattr(os, call, spy)

    with progress.attached():
        journal = JournalFile(tmp_path)
        body = DataBody(DataBrain(PLAN), journal)
        for call in ("fsync", "rename", "unlink"):
            spy_on(call)
        snapshot = body.brain.state.snapshot() if with_snapshot else None
        body.perform(Persist(serial=1, records=(StepTrained(step=1),), snapshot=snapshot))
        body.work()
        journal.close()
    assert len(allowed_s) == (6 if with_snapshot else 1)
    assert min(allowed_s) > SLOWEST_SYNC_S


class SlowDisk:
    """A log whose first sync lasts until it is released."""

    def __init__(self) -> None:
        self.syncing, self.released = threading.Event(), threading.Event()
        self.synced: list[int] = []
        """The number of records of each sync."""

    def append(self, records: Sequence[Record]) -> None:
        self.syncing.set()
        assert self.released.wait(60)
        self.synced.append(len(records))


class NumberedRecords:
    """A brain that logs a record for each message."""

    def __init__(self) -> None:
        self.serial, self.persisted = 0, threading.Event()

    def handle(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Persisted):
            if message.serial == 101:
                self.persisted.set()
            return []
        if not isinstance(message, BatchWanted):
            return []
        self.serial += 1
        return [Persist(serial=self.serial, records=(StepTrained(step=self.serial),), snapshot=None)]


def test_records_of_messages_that_arrive_during_a_sync_share_the_next() -> None:
    """So a slow disk delays an acknowledgement by two syncs at most, however many messages there are."""
    disk, brain = SlowDisk(), NumberedRecords()
    loop = Loop(
        name="data",
        build=lambda: DataBody(cast(DataBrain, brain), cast(JournalFile, disk)),
        send=lambda to, message: None,
    )
    loop.deliver(BatchWanted(step=1))
    assert disk.syncing.wait(60)
    for _ in range(100):
        loop.deliver(BatchWanted(step=1))
    disk.released.set()
    assert brain.persisted.wait(60)
    loop.stop()
    assert disk.synced == [1, 100]
