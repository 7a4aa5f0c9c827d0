"""Samples that never reach the trainer: one of each end and reason a step, for display.

Invariants:
- only samples that ended since the step before are reported; a restarted data brain reports none that ended earlier;
- they are not part of the state: no decision depends on them, and none is logged.
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
NO_SIGNAL: Final = "All samples of this prompt got the same reward, so there is nothing to learn from them."


class EndedSamples:
    def __init__(self, *, group_size: int, staleness: Callable[[Trajectory], int]) -> None:
        """`staleness`: a trajectory's current staleness."""
        self._group_size, self._staleness = group_size, staleness
        self._first: dict[tuple[str, ...], ReadTrajectory] = {}
        """By end and kind of reason."""
        self._allowance = Allowance(bytes_per_s=BYTES_PER_S, burst=BURST)
        self._taken_at: float | None = None

    def failed(self, group: OpenGroup) -> None:
        """Notes the failed samples of a group that cannot become complete."""
        self._note_failures(group, "failed", "")

    def done_without(self, group: OpenGroup) -> None:
        """Notes the failed samples of a group that is trained or filtered."""
        is_full = len(group.finished) >= group.num_needed
        begin = "Another sample took its place. " if is_full else "Its group continued without it. "
        self._note_failures(group, "done without", begin)

    def _note_failures(self, group: OpenGroup, what: str, begin: str) -> None:
        for trajectory in group.taken:
            if (failure := trajectory.failure) is not None and (what, failure.kind) not in self._first:
                self._first[what, failure.kind] = self._read(trajectory, "failed", f"{begin}{failure.reason}")

    def given_up(self, group: OpenGroup, reason: str, *, newest: WeightsId) -> None:
        """The weights of a sample that never ended are unknown: `newest` is used instead."""
        key = SampleKey(group=group.key, sample=min(group.missing, default=0))
        failure = Failure(kind="timeout", reason=reason)
        unfinished = Trajectory(key=key, weights=group.exact or newest, reward=0.0, num_tokens=0, failure=failure)
        self._first.setdefault(("given up",), self._read(unfinished, "failed", reason))

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
        """Samples since the last call."""
        self._allowance.earn(0.0 if self._taken_at is None else now - self._taken_at)
        self._taken_at = now
        noted, self._first = list(self._first.values()), {}
        shortened = (self._allowance.one(read, must=True) for read in noted)
        return tuple(read for read in shortened if read is not None)
