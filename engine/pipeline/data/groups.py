"""Open groups: their owners, and the samples that have ended.

Invariants:
- a group has at most one owner; if the owner is lost, finished samples stay and only the missing ones are redone;
- each grant has a higher lease than all before it, so that of two replicas that both claim a group, data revokes one;
- a sample is taken once, whichever replica delivers it and however often;
- a failed sample is replaced only where fewer samples than the group needs have ended well or still run;
- a group closes when it has all graded samples that it needs, when every sample has ended, or when too few samples
  are left to reach the minimum.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.pipeline.data.accounts import Account, Owner
from engine.pipeline.records import GroupKey, GroupTask, SampleKey, Trajectory
from engine.policy.lineage import WeightsId


@dataclass(slots=True, kw_only=True)
class OpenGroup:
    key: GroupKey
    num_needed: int
    num_least: int
    """The smallest number of graded samples with which the group is used."""
    num_replaceable: int = 0
    """Failed samples that may still be replaced by new ones."""
    missing: set[int]
    exact: WeightsId | None = None
    """Only these weights may answer: the group is an evaluation's, or its samples resume from tokens by these
    weights."""
    num_begun: int = 0
    """Number of samples begun, which is also the next sample's number."""
    taken: tuple[Trajectory, ...] = ()
    """All samples that ended, graded or not."""
    # Ownership, which is not logged:
    owner: Owner | None = None
    lease: int = 0
    granted_at: float = 0.0
    moved_at: float = 0.0
    """Time of its grant, or of the last check at which it had grown."""
    size_seen: tuple[int, int] = (0, 0)
    num_overdue: int = 0
    avoid: Owner | None = None
    """The owner that did not finish it in time."""
    source: Owner | None = None
    """The replica from which it was moved, where it may run until the order arrives."""
    size_granted: tuple[int, int] = (0, 0)
    num_failed_owners: int = 0
    """The owners that failed at their work before the group had grown in their hands."""
    is_begun: bool = False
    """The owner has confirmed that it holds the group."""
    progress: dict[int, Account] = field(default_factory=dict)

    @property
    def finished(self) -> list[Trajectory]:
        return [trajectory for trajectory in self.taken if not trajectory.failure]

    @property
    def has_enough(self) -> bool:
        return len(self.finished) >= self.num_least

    @property
    def has_ended(self) -> bool:
        num_finished = len(self.finished)
        is_hopeless = num_finished + len(self.missing) < self.num_least
        return num_finished >= self.num_needed or is_hopeless or not self.missing

    @property
    def size(self) -> tuple[int, int]:
        """Ended samples, and tokens of the others."""
        return len(self.taken), sum(account.num_tokens for account in self.progress.values())

    @property
    def is_suspect(self) -> bool:
        """The owner held it without a sign that its prompt can be answered."""
        return self.is_begun and self.size == self.size_granted

    def note_growth(self, now: float) -> None:
        """Notes whether the group has grown since the last check: a slow sample is not a hung one."""
        if self.size != self.size_seen:
            self.size_seen, self.moved_at = self.size, now

    def task(self, samples: Iterable[int] | None = None, *, is_handed_over: bool = False) -> GroupTask:
        wanted = sorted(self.missing if samples is None else samples)
        return GroupTask(
            key=self.key,
            samples=tuple(wanted),
            lease=self.lease,
            exact=self.exact,
            progress=tuple(
                self.progress[sample].progress(SampleKey(group=self.key, sample=sample))
                for sample in wanted
                if sample in self.progress
            ),
            is_handed_over=is_handed_over,
        )

    def take(self, trajectory: Trajectory) -> None:
        sample = trajectory.key.sample
        self.missing.discard(sample)
        self.progress.pop(sample, None)
        self.taken = (*self.taken, trajectory)
        has_spare = len(self.finished) + len(self.missing) >= self.num_needed
        if trajectory.failure and self.num_replaceable and not has_spare:
            self.num_replaceable -= 1
            self.missing.add(self.num_begun)
            self.num_begun += 1
            self.granted_at = float("-inf")  # the owner's grant lacks the new sample: extend it at the next report


class GroupBook:
    def __init__(
        self, *, num_samples: int, num_spare: int = 0, num_least: int | None = None, replaces: bool = False
    ) -> None:
        """`num_spare`: samples started beyond `num_samples`; the first `num_samples` verdicts complete the group.
        `num_least`: the smallest number of graded samples that a group is used with after failures. `replaces`: a
        new sample replaces each failed one that no spare sample makes up for, at most `num_samples` a group."""
        self._num_samples, self._num_spare = num_samples, num_spare
        self._num_least, self._replaces = num_samples if num_least is None else num_least, replaces
        self._open: dict[GroupKey, OpenGroup] = {}
        self._owned: dict[Owner, dict[GroupKey, OpenGroup]] = {}
        self._unowned: deque[GroupKey] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._open

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(list(self._open.values()))

    def get(self, key: GroupKey) -> OpenGroup | None:
        return self._open.get(key)

    def open(self, key: GroupKey, *, exact: WeightsId | None = None) -> OpenGroup:
        samples = set(range(self._num_samples + self._num_spare))
        group = self._open[key] = OpenGroup(
            key=key,
            num_needed=self._num_samples,
            num_least=self._num_least,
            num_replaceable=self._num_samples if self._replaces else 0,
            missing=samples,
            num_begun=len(samples),
            exact=exact,
        )
        self._unowned.append(key)
        return group

    def close(self, group: OpenGroup) -> None:
        del self._open[group.key]
        self._leave(group)

    # ── owners ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def num_unowned(self) -> int:
        return len(self._unowned)

    def unowned(self) -> Iterator[OpenGroup]:
        """Groups without an owner, longest waiting first."""
        return (self._open[key] for key in self._unowned)

    def owned_by(self, owner: Owner) -> list[OpenGroup]:
        return list(self._owned.get(owner, {}).values())

    def assign(self, group: OpenGroup, owner: Owner, *, lease: int, now: float) -> None:
        assert lease >= group.lease, f"{group.key}: lease {lease} after {group.lease}"
        self._leave(group)
        group.owner, group.lease, group.granted_at, group.moved_at = owner, lease, now, now
        group.source, group.is_begun, group.size_granted = None, False, group.size
        self._owned.setdefault(owner, {})[group.key] = group

    def give_back(self, groups: Iterable[OpenGroup]) -> None:
        """Takes the groups from their owners, to the front of the queue: they have waited longest."""
        for group in reversed(list(groups)):
            self._leave(group)
            group.owner, group.source, group.is_begun = None, None, False
            self._unowned.appendleft(group.key)

    def _leave(self, group: OpenGroup) -> None:
        if group.owner is None:
            self._unowned.remove(group.key)
            return
        owned = self._owned[group.owner]
        del owned[group.key]
        if not owned:
            del self._owned[group.owner]

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def misses(self, key: SampleKey) -> bool:
        group = self._open.get(key.group)
        return group is not None and key.sample in group.missing

    def take(self, trajectory: Trajectory) -> OpenGroup | None:
        """The group if this trajectory closed it; else None, also for a duplicate."""
        group = self._open.get(trajectory.key.group)
        if group is None or trajectory.key.sample not in group.missing:
            return None
        group.take(trajectory)
        if not group.has_ended:
            return None
        self.close(group)
        return group
