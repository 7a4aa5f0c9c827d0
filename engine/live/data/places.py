"""Places of trajectories in data's log: where each was written, so that nothing is written twice.

Invariant: a place is of one object; another trajectory of the same sample is not taken for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.pipeline.records import SampleKey, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    file: str
    at: int
    num_bytes: int


class Places:
    def __init__(self) -> None:
        self._known: dict[SampleKey, tuple[int, Place]] = {}

    def put(self, trajectory: Trajectory, place: Place) -> None:
        self._known[trajectory.key] = (id(trajectory), place)

    def of(self, trajectory: Trajectory) -> Place | None:
        """Of the trajectory that was put last for this sample, as long as it lives."""
        which, place = self._known.get(trajectory.key, (0, None))
        return place if which == id(trajectory) else None

    def __iter__(self) -> Iterator[Place]:
        return (place for _, place in self._known.values())

    def take_over(self, earlier: "Places") -> None:
        self._known = {**earlier._known, **self._known}
