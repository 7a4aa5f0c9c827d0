"""Offsets of trajectories in data's log, so that no trajectory is written twice.

Invariant: an offset belongs to one object; another trajectory of the same sample does not get it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.pipeline.records import SampleKey, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    file: str
    at: int
    num_bytes: int


class TrajectoryOffsets:
    def __init__(self) -> None:
        self._known: dict[SampleKey, tuple[int, Offset]] = {}

    def put(self, trajectory: Trajectory, offset: Offset) -> None:
        self._known[trajectory.key] = (id(trajectory), offset)

    def of(self, trajectory: Trajectory) -> Offset | None:
        """The offset if this object was put last for its sample. Valid while that object lives."""
        which, offset = self._known.get(trajectory.key, (0, None))
        return offset if which == id(trajectory) else None

    def __iter__(self) -> Iterator[Offset]:
        return (offset for _, offset in self._known.values())

    def take_over(self, earlier: "TrajectoryOffsets") -> None:
        self._known = {**earlier._known, **self._known}
