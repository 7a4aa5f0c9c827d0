"""Groups that are not whole yet: who works on which, and what has come back.

Invariants:
- a group has at most one owner; its finished samples stay when the owner is lost, only the missing ones are redone;
- a sample is taken once, whoever delivers it and however often;
- a group leaves the book whole, or by a failed sample, and then whole as well.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.pipeline.records import GroupKey, GroupTask, Trajectory


@dataclass(slots=True, kw_only=True)
class OpenGroup:
    key: GroupKey
    missing: set[int]
    exact_version: int | None = None
    owner: tuple[int, int] | None = None
    """Replica and incarnation."""
    granted_at: float = 0.0
    finished: list[Trajectory] = field(default_factory=list)

    def task(self) -> GroupTask:
        return GroupTask(key=self.key, samples=tuple(sorted(self.missing)), exact_version=self.exact_version)


class GroupBook:
    def __init__(self) -> None:
        self._open: dict[GroupKey, OpenGroup] = {}
        self._unowned: deque[GroupKey] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._open

    def open(self, key: GroupKey, *, num_samples: int, exact_version: int | None = None) -> None:
        self._open[key] = OpenGroup(key=key, missing=set(range(num_samples)), exact_version=exact_version)
        self._unowned.append(key)

    def next_unowned(self) -> OpenGroup | None:
        return self._open[self._unowned[0]] if self._unowned else None

    @property
    def num_unowned(self) -> int:
        return len(self._unowned)

    def grant_next(self, owner: tuple[int, int], now: float) -> GroupTask:
        group = self._open[self._unowned.popleft()]
        group.owner, group.granted_at = owner, now
        return group.task()

    def owned_by(self, owner: tuple[int, int]) -> list[OpenGroup]:
        return [group for group in self._open.values() if group.owner == owner]

    def give_back(self, groups: Iterable[OpenGroup]) -> int:
        """They go to the front: what has waited longest is done first."""
        returned = list(groups)
        for group in reversed(returned):
            group.owner = None
            self._unowned.appendleft(group.key)
        return len(returned)

    def allow_any_version(self) -> None:
        for group in self._open.values():
            group.exact_version = None

    def take(self, trajectory: Trajectory) -> OpenGroup | None:
        """The group, if this trajectory ended it (whole or failed); None otherwise, also for what is known already."""
        group = self._open.get(trajectory.key.group)
        if group is None or trajectory.key.sample not in group.missing:
            return None
        group.missing.discard(trajectory.key.sample)
        group.finished.append(trajectory)
        if not group.missing or trajectory.failure:
            return self._close(group)
        return None

    def _close(self, group: OpenGroup) -> OpenGroup:
        del self._open[group.key]
        if group.owner is None:  # a lost owner's late delivery ended it while it waited for a new one
            self._unowned.remove(group.key)
        return group
