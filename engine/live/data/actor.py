"""Data's actor: the brain decides, the body writes the log.

Invariants:
- the body acknowledges records to the brain only after they are on the disk; records close in time share one sync;
- a batch is put into Ray's object store once; every resend passes the same reference.
"""

from pathlib import Path
from typing import Any

import ray

from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body
from engine.live.body.recording import plain
from engine.live.data.journal_file import JournalFile
from engine.live.data.recovery import read_journal
from engine.pipeline.data.brain import DataBrain, Recovered
from engine.pipeline.effects import Effect, Persist
from engine.pipeline.journal import Record
from engine.pipeline.messages.addresses import DATA, Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_data import Persisted
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import DataProgress
from engine.policy.progress import SLOWEST_SYNC_S
from engine.process.progress import working


class DataBody:
    tick_s = 0.5

    def __init__(self, brain: DataBrain, journal: JournalFile) -> None:
        self.brain = brain
        self._journal = journal
        self._unsynced: list[Persist] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._unsynced)

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case Persist():
                self._unsynced.append(effect)
                return []
            case _:
                raise TypeError(f"data's body does not support {type(effect).__name__}")

    def work(self) -> list[Message]:
        unsynced, self._unsynced = self._unsynced, []
        with working("append", constant_s=SLOWEST_SYNC_S):
            self._write(unsynced)
        return [Persisted(serial=unsynced[-1].serial)]

    def _write(self, unsynced: list[Persist]) -> None:
        records: list[Record] = []
        for persist in unsynced:
            records += persist.records
            if persist.snapshot is not None:  # it refers to these records' offsets
                self._journal.append(records)
                self._journal.start_snapshot(persist.snapshot)
                records = []
        if records:
            self._journal.append(records)

    def measure(self, now: float) -> list[Message]:
        return []


class DataActor(BodyActor):
    def __init__(
        self,
        *,
        plan: Plan,
        incarnation: int,
        start_step: int,
        progress: DataProgress,
        journal: Path,
        recordings: Path | None,
    ) -> None:
        self._plan, self._start_step, self._progress = plan, start_step, progress
        self._journal, self._incarnation = journal, incarnation
        self._batch: tuple[int, int] | None = None
        self._batch_ref: Any = None
        built_with = {"plan": plain(plan), "start_step": start_step, "progress": plain(progress)}
        # A later incarnation starts from a log, which its recording does not contain.
        super().__init__(
            part=DATA, incarnation=incarnation, recordings=None if incarnation else recordings, built_with=built_with
        )

    def _send(self, to: Address, message: Message) -> None:
        if not isinstance(message, BatchReady):
            super()._send(to, message)
            return
        batch = (message.epoch, message.step)
        if self._batch != batch:
            self._batch, self._batch_ref = batch, ray.put(message)
        super()._send(to, self._batch_ref)

    def build(self) -> Body:
        recovered: Recovered | None = None
        if self._incarnation > 0:
            snapshot, records = read_journal(self._journal)
            recovered = Recovered(snapshot=snapshot, records=records, serial=len(records))
        brain = DataBrain(
            self._plan,
            start_step=self._start_step,
            progress=self._progress,
            incarnation=self._incarnation,
            recovered=recovered,
        )
        return DataBody(brain, JournalFile(self._journal))
