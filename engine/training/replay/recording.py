"""A trainer that records one of its steps: the checkpoint before it, the batch, the computed values, the one after it.

Invariant: the recorded step equals the step without a recording, except that a GPU computes it with deterministic
kernels, which round differently. Training waits for the two checkpoints; a pending checkpoint is written first, since
its copy occupies the memory that they need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import torch
from safetensors.torch import save_file

from engine.process.progress import report_progress
from engine.spec.checkpoint_manifest import CheckpointPart
from engine.training.batch import Trajectories
from engine.training.port import StepResult, Steps, Write
from engine.training.replay.batch import as_tensors
from engine.training.replay.deterministic import deterministic_kernels
from engine.training.replay.record import (
    BATCH_FILE,
    BEGIN,
    COMPUTED_FILE,
    END,
    RECORD_FILE,
    Machine,
    StepRecord,
    digest,
    inputs,
    numbered,
    outcome,
)
from engine.training.step.witness import witnessing

LOOK_UP_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStep:
    step: int
    """Counted from 1 over the whole job."""
    folder: Path
    spec: dict[str, Any]
    """As JSON."""
    model: Path
    num_ranks: int
    ranks_per_host: int | None = None
    """As in the record."""


class RecordedTrainer:
    def __init__(self, trainer: Steps, asked: AskedStep, *, steps_before: int) -> None:
        self._trainer, self._recording, self._step = trainer, asked, steps_before
        self._no_pending_save = Event()
        self._no_pending_save.set()

    def train_step(self, trajectories: Trajectories) -> StepResult:
        self._step += 1
        if self._step != self._recording.step:
            return self._trainer.train_step(trajectories)
        while not self._no_pending_save.wait(LOOK_UP_EVERY_S):
            report_progress()
        folder = self._recording.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD_FILE).unlink(missing_ok=True)
        save_file(as_tensors(trajectories), folder / BATCH_FILE)
        self._trainer.prepare_save(folder / BEGIN)()
        with deterministic_kernels() as not_deterministic:
            result = train_witnessed(self._trainer, trajectories, folder)
        record = StepRecord(
            step=self._step,
            spec=self._recording.spec,
            model=str(self._recording.model),
            num_ranks=self._recording.num_ranks,
            ranks_per_host=self._recording.ranks_per_host,
            machine=Machine.here(),
            not_deterministic=not_deterministic + self._list_other_ranks(),
            digests={name: digest(tensor) for read in (inputs, outcome) for name, tensor in read(folder)},
        )
        (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))
        return result

    def _list_other_ranks(self) -> list[str]:
        """Operations on other ranks are unknown: only the first rank records."""
        is_shared = self._recording.num_ranks > 1 and torch.cuda.is_available()
        return ["a GPU's work on ranks beyond the first"] if is_shared else []

    @property
    def num_parameters(self) -> int:
        return self._trainer.num_parameters

    def get_ready_to_save(self) -> None:
        self._trainer.get_ready_to_save()

    def prepare_save(self, folder: Path) -> Write:
        write = self._trainer.prepare_save(folder)
        self._no_pending_save.clear()
        return partial(self._write, write)

    def _write(self, write: Write) -> Mapping[str, CheckpointPart]:
        """Runs on the thread that writes checkpoints."""
        try:
            return write()
        finally:
            self._no_pending_save.set()

    def load(self, folder: Path) -> None:
        self._trainer.load(folder)


def train_witnessed(
    trainer: Steps, trajectories: Trajectories, folder: Path, *, computed: Path | None = None
) -> StepResult:
    """Writes the computed values and the checkpoint after the step to the folder. `computed`: another folder for the
    values, on ranks other than the first."""
    with witnessing() as witness:
        result = trainer.train_step(trajectories)
    save_file(numbered(witness.seen), (computed or folder) / COMPUTED_FILE)
    trainer.prepare_save(folder / END)()
    return result
