"""Data's body waits for a disk to which others write gigabytes, and says so, whatever of its log it is at."""

import os
from pathlib import Path

import pytest

from engine.live.data.actor import DataBody
from engine.live.data.journal_file import JournalFile
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.effects import Persist
from engine.pipeline.journal import StepTrained
from engine.policy.pace import SLOWEST_SYNC_S
from engine.policy.recovery import Patience
from engine.signs import Signs
from tests.engine.pipeline.brain_builders import PLAN


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_whatever_waits_for_the_disk_may_take_as_long_as_the_slowest_wait(
    with_snapshot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = DataBody(DataBrain(PLAN), JournalFile(tmp_path))
    signs = Signs()
    allowed_s: list[float] = []

    def noted(call: str) -> None:
        real = getattr(os, call)

        def note(*arguments: object, **options: object) -> object:
            allowed_s.append(Patience().standstill_s(signs.piece))
            return real(*arguments, **options)

        monkeypatch.setattr(os, call, note)

    for call in ("fsync", "rename", "unlink"):
        noted(call)
    snapshot = body.brain.state.snapshot() if with_snapshot else None
    body.perform(Persist(serial=1, records=(StepTrained(step=1),), snapshot=snapshot))
    with signs.heard_here():
        body.work()
    assert len(allowed_s) == (4 if with_snapshot else 1)
    assert min(allowed_s) > SLOWEST_SYNC_S
