"""Data's body reports slow disk waits in every step of its log, since others write gigabytes to the same disk."""

import os
import threading
from pathlib import Path

import pytest

from engine.live.data.actor import DataBody
from engine.live.data.journal_file import JournalFile
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Persist
from engine.pipeline.journal import StepTrained
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
