"""The workload of one replica: running, awaited, reserved, ended but not confirmed.

Invariants:
- a sample runs at most once here, whatever is granted twice;
- of two leases of a group the higher counts: what a lower one orders after that is void;
- a group runs on one version here, also what is granted of it later;
- reserved and awaited samples take room like running ones, and keep their weights in use like them.
"""

# Over budget: one book of all that a replica holds; whether something may begin depends on every page of it.

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from engine.pipeline.messages.to_rollout import SequencesHandedOver
from engine.pipeline.records import GroupKey, GroupTask, HandOver, HeldGroup, Reservation, SampleKey, Trajectory
from engine.policy.lineage import NO_WEIGHTS, WeightsId

# Tokens alone come so, once the source has ended its step; later it is quicker to begin from those that data knows.
AWAIT_S: Final = 6.0
# Data decides within two seconds what becomes of a reservation.
RESERVED_FOR_S: Final = 6.0
# Leases are remembered so that an order that comes late is known to be void; later than this none comes.
MAX_LEASES: Final = 10_000


@dataclass(slots=True, kw_only=True)
class Running:
    lease: int
    samples: set[int]
    weights: WeightsId
    tellings: dict[int, int] = field(default_factory=dict)
    """Of each sample that was begun under this lease or an earlier one, the name of its run."""

    def held(self, key: GroupKey) -> HeldGroup:
        return HeldGroup(key=key, lease=self.lease, samples=tuple(sorted(self.samples)), weights=self.weights)


@dataclass(slots=True, kw_only=True)
class Awaited:
    task: GroupTask
    since: float
    weights: WeightsId


class Workload:
    def __init__(self, *, max_batch: int, keeps_version: bool) -> None:
        self._max_batch, self._keeps_version = max_batch, keeps_version
        self._running: dict[GroupKey, Running] = {}
        self._awaited: dict[GroupKey, Awaited] = {}
        self._reserved: dict[GroupKey, tuple[Reservation, float]] = {}
        self._came_early: dict[GroupKey, tuple[SequencesHandedOver, float]] = {}
        self._unconfirmed: dict[SampleKey, Trajectory] = {}
        self._unsent: list[Trajectory] = []
        self._stopping: dict[GroupKey, HeldGroup] = {}
        self._num_tellings = self._tellings_before = 0
        self._last_lease: dict[GroupKey, int] = {}
        """The highest under which something was begun, awaited or handed over here."""
        self._floor: dict[GroupKey, int] = {}
        """Orders under a lower lease are void."""

    @property
    def num_running(self) -> int:
        return sum(len(running.samples) for running in self._running.values())

    @property
    def num_busy(self) -> int:
        return sum(num for _, num in self._places())

    def num_busy_on(self, weights: WeightsId) -> int:
        return sum(num for its, num in self._places() if its == weights)

    @property
    def room(self) -> int:
        return self.room_after(0)

    def room_after(self, num_ends: int) -> int:
        """Once so many more have ended."""
        return max(0, self._max_batch + num_ends - self.num_busy)

    @property
    def in_use(self) -> frozenset[WeightsId]:
        """Weights that something runs on, or will."""
        return frozenset(weights for weights, _ in self._places())

    def _places(self) -> Iterator[tuple[WeightsId, int]]:
        """The places taken or promised: so many samples on these weights."""
        yield from ((running.weights, len(running.samples)) for running in self._running.values())
        yield from ((awaited.weights, len(awaited.task.samples)) for awaited in self._awaited.values())
        yield from ((kept.weights, kept.num_samples) for kept, _ in self._reserved.values())

    @property
    def is_empty(self) -> bool:
        return not (self._running or self._awaited or self._stopping or self._unconfirmed)

    # ── granted ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, task: GroupTask, weights: WeightsId) -> GroupTask | None:
        """The part of this that is neither running nor done here; None if there is none, if others were promised the
        room, or if the rest of the group runs on other weights."""
        is_promised = bool(self._reserved or self._awaited) and task.key not in self._awaited
        if task.lease < self._floor.get(task.key, 0) or (is_promised and len(task.samples) > self.room):
            return None
        running = self._running.get(task.key)
        if running is not None and running.weights != weights:
            return None
        self._began(task.key, task.lease)
        if running is not None:
            running.lease = task.lease
        awaited = self._awaited.pop(task.key, None)
        if awaited is not None and awaited.task.is_handed_over:
            task = replace(task, samples=tuple(sorted({*task.samples, *awaited.task.samples})))
        present = set() if running is None else running.samples
        samples = tuple(
            sample
            for sample in task.samples
            if sample not in present and SampleKey(group=task.key, sample=sample) not in self._unconfirmed
        )
        if not samples:
            return None
        if running is None:
            running = self._running[task.key] = Running(lease=task.lease, samples=set(), weights=weights)
        self._run(running, samples)
        return replace(task, samples=samples)

    def end(self, trajectories: Iterable[Trajectory]) -> bool:
        """True if there is something new to say. A sample that ended while it was being handed over counts as well."""
        is_news = False
        for trajectory in trajectories:
            key = trajectory.key
            self._drop(key.group, {key.sample})
            if key not in self._unconfirmed:
                self._unconfirmed[key] = trajectory
                self._unsent.append(trajectory)
                is_news = True
        return is_news

    def confirm(self, taken: Iterable[SampleKey]) -> None:
        for key in taken:
            self._unconfirmed.pop(key, None)

    def revoke(self, orders: Iterable[HeldGroup]) -> list[HeldGroup]:
        """The groups of this that run and have to stop. Those that ended are not data's any more, once confirmed."""
        stopped: list[HeldGroup] = []
        for order in orders:
            running = self._running.get(order.key)
            if running is not None and running.lease <= order.lease:
                del self._running[order.key]
                stopped.append(replace(running.held(order.key), lease=order.lease))
            awaited = self._awaited.get(order.key)
            if awaited is not None and awaited.task.lease <= order.lease:
                del self._awaited[order.key]
            _raise(self._floor, order.key, order.lease + 1)
        return stopped

    def stop_all(self) -> list[HeldGroup]:
        """Held until the body has said what they said so far."""
        stopped = list(self.running())
        self._stopping = {held.key: held for held in stopped}
        self._running.clear()
        self._awaited.clear()
        self._reserved.clear()
        return stopped

    def has_stopped(self) -> None:
        self._stopping.clear()

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, order: HandOver) -> HeldGroup | None:
        running = self._running.get(order.key)
        _raise(self._floor, order.key, order.lease)
        if running is None or running.lease >= order.lease:
            return None
        del self._running[order.key]
        return replace(running.held(order.key), lease=order.lease)

    def reserve(self, wanted: Iterable[Reservation], residents: Collection[WeightsId], now: float) -> None:
        """All that is reserved from now on, for weights that are here."""
        self._reserved = {}
        for reservation in wanted:
            fits = reservation.weights in residents and reservation.num_samples <= self.room
            if fits and not self._is_void(reservation.key, reservation.lease):
                self._reserved[reservation.key] = (reservation, now)

    def await_handover(self, task: GroupTask, weights: WeightsId, now: float) -> SequencesHandedOver | None:
        """The samples that came already, to go on with; else they are awaited."""
        if self._is_void(task.key, task.lease):
            return None
        self._began(task.key, task.lease)
        self._reserved.pop(task.key, None)
        self._awaited[task.key] = Awaited(task=task, since=now, weights=weights)
        early = self._came_early.pop(task.key, None)
        if early is None or not self.receive(early[0], now):
            return None
        return early[0]

    def receive(self, handed: SequencesHandedOver, now: float) -> bool:
        """True if these samples may go on here."""
        awaited = self._awaited.get(handed.key)
        if awaited is None or awaited.task.lease != handed.lease:
            if not self._is_void(handed.key, handed.lease):
                self._came_early[handed.key] = (handed, now)
            return False
        if self._keeps_version and handed.weights != awaited.weights:
            return False
        del self._awaited[handed.key]
        samples = {progress.key.sample for progress in handed.progress}
        if samples:
            running = Running(lease=handed.lease, samples=set(), weights=awaited.weights)
            self._run(running, samples)
            self._running[handed.key] = running
        return bool(samples)

    def give_up_waiting(self, now: float) -> list[GroupTask]:
        """The tasks that were awaited too long: they begin from the state that data knew."""
        self._reserved = {key: kept for key, kept in self._reserved.items() if now - kept[1] < RESERVED_FOR_S}
        self._came_early = {key: kept for key, kept in self._came_early.items() if now - kept[1] < AWAIT_S}
        overdue = [awaited for awaited in self._awaited.values() if now - awaited.since >= AWAIT_S]
        begun = [self.begin(replace(each.task, is_handed_over=False), each.weights) for each in overdue]
        for each in overdue:
            self._awaited.pop(each.task.key, None)
        return [
            replace(task, exact=each.weights) for each, task in zip(overdue, begun, strict=True) if task is not None
        ]

    def _run(self, running: Running, samples: Iterable[int]) -> None:
        for sample in samples:
            self._num_tellings += 1
            running.samples.add(sample)
            running.tellings[sample] = self._num_tellings

    def carry_on(self, weights: WeightsId) -> None:
        """All that runs goes on on these."""
        for running in self._running.values():
            running.weights = weights
        for awaited in self._awaited.values():
            awaited.weights = weights

    def weights_of(self, key: GroupKey) -> WeightsId | None:
        """Those that this group runs on here."""
        running = self._running.get(key)
        return None if running is None else running.weights

    # ── accounts ──────────────────────────────────────────────────────────────────────────────────────────────────

    def running(self) -> tuple[HeldGroup, ...]:
        return tuple(running.held(key) for key, running in self._running.items())

    def still_in_training(self) -> list[tuple[SampleKey, int]]:
        """The samples of training that ran when this was asked last, with the names of their runs: the others are soon
        begun again, and most have ended by then."""
        before, self._tellings_before = self._tellings_before, self._num_tellings
        return [
            (SampleKey(group=key, sample=sample), running.tellings[sample])
            for key, running in self._running.items()
            if key.evaluation is None
            for sample in sorted(running.samples)
            if running.tellings[sample] <= before
        ]

    def groups(self) -> tuple[HeldGroup, ...]:
        held: dict[GroupKey, set[int]] = {}
        leases: dict[GroupKey, int] = {}
        weights: dict[GroupKey, WeightsId] = {}
        for key, running in self._running.items():
            held.setdefault(key, set()).update(running.samples)
            leases[key], weights[key] = running.lease, running.weights
        for key, awaited in self._awaited.items():
            held.setdefault(key, set()).update(awaited.task.samples)
            leases[key], weights[key] = awaited.task.lease, awaited.weights
        for key, stopping in self._stopping.items():
            held.setdefault(key, set()).update(stopping.samples)
            leases[key], weights[key] = stopping.lease, stopping.weights
        for sample_key in self._unconfirmed:
            held.setdefault(sample_key.group, set()).add(sample_key.sample)
        return tuple(
            HeldGroup(
                key=key,
                lease=leases.get(key, self._last_lease.get(key, 0)),
                samples=tuple(sorted(samples)),
                is_over=key not in leases,
                weights=weights.get(key, NO_WEIGHTS),
            )
            for key, samples in held.items()
        )

    def reserved(self) -> tuple[HeldGroup, ...]:
        return tuple(HeldGroup(key=key, lease=kept.lease, samples=()) for key, (kept, _) in self._reserved.items())

    def to_hand_over(self, *, all_of_them: bool) -> tuple[Trajectory, ...]:
        unsent, self._unsent = self._unsent, []
        return tuple(self._unconfirmed.values()) if all_of_them else tuple(unsent)

    def _drop(self, key: GroupKey, samples: set[int]) -> None:
        running = self._running.get(key)
        if running is not None:
            running.samples -= samples
            if not running.samples:
                del self._running[key]

    def _began(self, key: GroupKey, lease: int) -> None:
        _raise(self._last_lease, key, lease)
        _raise(self._floor, key, lease)

    def _is_void(self, key: GroupKey, lease: int) -> bool:
        """As a first order under this lease."""
        return lease < self._floor.get(key, 0) or lease <= self._last_lease.get(key, 0)


def _raise(leases: dict[GroupKey, int], key: GroupKey, lease: int) -> None:
    if lease > leases.get(key, 0):
        leases.pop(key, None)
        leases[key] = lease
    if len(leases) > MAX_LEASES:
        del leases[next(iter(leases))]
