"""Samples that never reach the trainer: of each end and reason one a step, for whoever asks what became of them.

Invariants:
- only what ended since the step before is told; a data brain that began again tells nothing of what ended before;
- they are no part of the state: nothing is decided by them, and none is written down.
"""

from collections.abc import Callable
from typing import Final

from engine.pipeline.data.groups import OpenGroup
from engine.pipeline.messages.to_driver import ReadTrajectory
from engine.pipeline.reading import Allowance
from engine.pipeline.records import CompleteGroup, Failure, SampleKey, Trajectory
from engine.policy.lineage import WeightsId
from engine.spec.facts import End

BYTES_PER_S: Final = 15_000.0
BURST: Final = 500_000.0
NO_SIGNAL: Final = "All samples of its question were worth the same: there is nothing to learn from them."


class EndedSamples:
    def __init__(self, *, group_size: int, staleness: Callable[[Trajectory], int]) -> None:
        """`staleness`: as of now."""
        self._group_size, self._staleness = group_size, staleness
        self._first: dict[tuple[str, ...], ReadTrajectory] = {}
        """By end and kind of reason."""
        self._allowance = Allowance(bytes_per_s=BYTES_PER_S, burst=BURST)
        self._told_at: float | None = None

    def failed(self, group: OpenGroup) -> None:
        """So many of its samples had no verdict that it cannot be whole."""
        self._note_failures(group, "failed", "")

    def done_without(self, group: OpenGroup) -> None:
        """Notes the failed samples of a group that is trained or filtered."""
        is_full = len(group.finished) >= group.num_needed
        begin = "Another sample took its place. " if is_full else "Its group went on without it. "
        self._note_failures(group, "done without", begin)

    def _note_failures(self, group: OpenGroup, what: str, begin: str) -> None:
        for trajectory in group.taken:
            if (failure := trajectory.failure) is not None and (what, failure.kind) not in self._first:
                self._first[what, failure.kind] = self._read(trajectory, "failed", f"{begin}{failure.reason}")

    def given_up(self, group: OpenGroup, reason: str, *, newest: WeightsId) -> None:
        """Of a sample that never ended nothing is known: `newest` stands for its weights."""
        key = SampleKey(group=group.key, sample=min(group.missing, default=0))
        failure = Failure(kind="timeout", reason=reason)
        silent = Trajectory(key=key, weights=group.exact or newest, reward=0.0, num_tokens=0, failure=failure)
        self._first.setdefault(("given up",), self._read(silent, "failed", reason))

    def filtered(self, group: OpenGroup) -> None:
        if ("filtered",) not in self._first:
            self._first["filtered",] = self._read(group.finished[0], "filtered", NO_SIGNAL)

    def dropped(self, group: CompleteGroup) -> None:
        if ("dropped",) in self._first:
            return
        stalest = max(group.trajectories, key=self._staleness)
        reason = f"It was {self._staleness(stalest)} versions old when its turn came, more than the job allows."
        self._first["dropped",] = self._read(stalest, "dropped_stale", reason)

    def _read(self, trajectory: Trajectory, end: End, reason: str) -> ReadTrajectory:
        return ReadTrajectory(
            trajectory=trajectory,
            staleness=max(0, self._staleness(trajectory)),
            advantage=0.0,
            group_size=self._group_size,
            end=end,
            reason=reason,
        )

    def forget(self) -> None:
        self._first.clear()

    def take(self, now: float) -> tuple[ReadTrajectory, ...]:
        """Those since the last time."""
        self._allowance.earn(0.0 if self._told_at is None else now - self._told_at)
        self._told_at = now
        noted, self._first = list(self._first.values()), {}
        told = (self._allowance.one(read, must=True) for read in noted)
        return tuple(read for read in told if read is not None)
