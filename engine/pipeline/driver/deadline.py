"""The deadline of a run: when it must pause for its last steps to be in a checkpoint before its time is over.

    ─── steps ───┬─ reserve: the step in training, and its checkpoint ─┬─ max_runtime_s
                 pause                                                ended in any case (`live/process/interruptions`)

Invariants:
- the reserve follows from the run's measured times so far, and is at most half of its runtime;
- before the first step there is nothing to save, and no reserve.
"""

from typing import Final

from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import CheckpointReported, StepReported, TrainerReady

MARGIN: Final = 1.5
LEAST_RESERVE_S: Final = 10.0
MOST_OF_RUNTIME: Final = 1 / 2
CHECKPOINT_BYTES: Final = 12
"""Bytes for each parameter: weights and moments in float32."""
DISK_BYTES_PER_S: Final = 250e6
"""Rate of a slow shared disk, used until this run has written a checkpoint."""


class Deadline:
    def __init__(self, *, now: float, runtime_left_s: float | None) -> None:
        """`runtime_left_s`: None if another process ends the run."""
        self._began_at, self._runtime_s = now, runtime_left_s
        self._step_s = self._write_s = 0.0
        self._trained_at: dict[int, float] = {}
        """By step, for steps that are not in a checkpoint yet."""
        self._is_written = False

    def receive(self, message: Message, now: float) -> None:
        match message:
            case TrainerReady() if not self._is_written:
                self._write_s = CHECKPOINT_BYTES * message.num_parameters / DISK_BYTES_PER_S
            case StepReported():
                self._step_s = max(self._step_s, message.metrics.get("trainer/step_s", 0.0))
                self._trained_at[message.step] = now
            case CheckpointReported() if message.step in self._trained_at:
                write_s = now - self._trained_at[message.step]
                self._write_s = max(self._write_s, write_s) if self._is_written else write_s
                self._is_written = True
                self._trained_at = {step: at for step, at in self._trained_at.items() if step > message.step}
            case _:
                pass

    def is_near(self, now: float) -> bool:
        if self._runtime_s is None or not self._step_s:
            return False
        reserve_s = max(MARGIN * (self._step_s + self._write_s), LEAST_RESERVE_S)
        return now - self._began_at >= self._runtime_s - min(reserve_s, MOST_OF_RUNTIME * self._runtime_s)
