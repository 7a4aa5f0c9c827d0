"""The workload of one replica: groups running, awaited, reserved, or ended but not confirmed.

Invariants:
- a sample runs at most once here, even if granted twice;
- of two leases of a group the higher counts: later orders under the lower one are void;
- all samples of a group run on one version here, also those granted later;
- reserved and awaited samples take room and keep their weights in use, like running ones.
"""

# Over budget: one state of all that a replica holds; whether work may begin depends on all of it.

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from engine.pipeline.messages.to_rollout import SequencesHandedOver
from engine.pipeline.records import GroupKey, GroupTask, HandOver, HeldGroup, Reservation, SampleKey, Trajectory
from engine.pipeline.rollout.occupancy import Occupancy
from engine.policy.lineage import WeightsId

# Enough for tokens to arrive once the source has ended its step; later it is quicker to begin from data's progress.
AWAIT_S: Final = 6.0
# Data commits or cancels a reservation within two seconds.
RESERVED_FOR_S: Final = 6.0
# Leases are remembered to recognize late orders as void; no order is later than this.
MAX_LEASES: Final = 10_000


@dataclass(slots=True, kw_only=True)
class Running:
    lease: int
    samples: set[int]
    weights: WeightsId
    sample_runs: dict[int, int] = field(default_factory=dict)
    """By sample begun under this lease or an earlier one: the number of its run."""
    _held: HeldGroup | None = None
    """Cached result of `held`; None: outdated."""

    def held(self, key: GroupKey) -> HeldGroup:
        """Sent with every sync, and unchanged in most of them."""
        if self._held is None:
            samples = tuple(sorted(self.samples))
            self._held = HeldGroup(key=key, lease=self.lease, samples=samples, weights=self.weights)
        return self._held

    def change(self, *, lease: int | None = None, weights: WeightsId | None = None) -> None:
        """Must also be called after a change of `samples`."""
        self.lease = self.lease if lease is None else lease
        self.weights = self.weights if weights is None else weights
        self._held = None


@dataclass(slots=True, kw_only=True)
class Awaited:
    task: GroupTask
    since: float
    weights: WeightsId


class Workload:
    def __init__(self, *, max_batch: int, keeps_version: bool) -> None:
        self._max_batch, self._keeps_version = max_batch, keeps_version
        self._occupancy = Occupancy()
        self._running: dict[GroupKey, Running] = {}
        self._awaited: dict[GroupKey, Awaited] = {}
        self._reserved: dict[GroupKey, tuple[Reservation, float]] = {}
        self._early: dict[GroupKey, tuple[SequencesHandedOver, float]] = {}
        self._unconfirmed: dict[SampleKey, Trajectory] = {}
        self._unsent: list[Trajectory] = []
        self._stopping: dict[GroupKey, HeldGroup] = {}
        self._num_sample_runs = self._tellings_before = 0
        self._last_lease: dict[GroupKey, int] = {}
        """The highest lease under which samples were begun, awaited or handed over here."""
        self._floor: dict[GroupKey, int] = {}
        """Orders under a lower lease are void."""

    @property
    def num_running(self) -> int:
        return self._occupancy.num_running

    @property
    def num_busy(self) -> int:
        return self._occupancy.num_busy

    def num_busy_on(self, weights: WeightsId) -> int:
        return self._occupancy.num_busy_on(weights)

    @property
    def room(self) -> int:
        return self.room_after(0)

    def room_after(self, num_ends: int) -> int:
        """Room once so many more samples have ended."""
        return max(0, self._max_batch + num_ends - self.num_busy)

    @property
    def in_use(self) -> frozenset[WeightsId]:
        """Weights with running, awaited or reserved samples."""
        return self._occupancy.in_use

    @property
    def is_empty(self) -> bool:
        return not (self._running or self._awaited or self._stopping or self._unconfirmed)

    # ── granted ───────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, task: GroupTask, weights: WeightsId) -> GroupTask | None:
        """The part of the task that is neither running nor done here. None: there is none, its room is promised to
        others, or the rest of the group runs on other weights."""
        is_promised = bool(self._reserved or self._awaited) and task.key not in self._awaited
        if task.lease < self._floor.get(task.key, 0) or (is_promised and len(task.samples) > self.room):
            return None
        running = self._running.get(task.key)
        if running is not None and running.weights != weights:
            return None
        self._note_lease(task.key, task.lease)
        if running is not None:
            running.change(lease=task.lease)
        awaited = self._stop_awaiting(task.key)
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
        self._run(task.key, running, samples)
        return replace(task, samples=samples)

    def end(self, trajectories: Iterable[Trajectory]) -> bool:
        """True if there are new results. A sample that ended while it was being handed over counts too."""
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
        """The running groups that must stop. Ended samples stay until confirmed."""
        stopped: list[HeldGroup] = []
        for order in orders:
            running = self._running.get(order.key)
            if running is not None and running.lease <= order.lease:
                self._stop_running(order.key)
                stopped.append(replace(running.held(order.key), lease=order.lease))
            awaited = self._awaited.get(order.key)
            if awaited is not None and awaited.task.lease <= order.lease:
                self._stop_awaiting(order.key)
            _raise(self._floor, order.key, order.lease + 1)
        return stopped

    def stop_all(self) -> list[HeldGroup]:
        """Stops everything. The groups stay listed until the body has reported their progress."""
        stopped = list(self.running())
        self._stopping = {held.key: held for held in stopped}
        self._running.clear()
        self._awaited.clear()
        self._reserved.clear()
        self._occupancy.free_all(("running", "awaited", "reserved"))
        return stopped

    def clear_stopping(self) -> None:
        self._stopping.clear()

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def hand_over(self, order: HandOver) -> HeldGroup | None:
        running = self._running.get(order.key)
        _raise(self._floor, order.key, order.lease)
        if running is None or running.lease >= order.lease:
            return None
        self._stop_running(order.key)
        return replace(running.held(order.key), lease=order.lease)

    def reserve(self, wanted: Iterable[Reservation], residents: Collection[WeightsId], now: float) -> None:
        """Replaces all reservations; only those on resident weights are kept."""
        self._give_up_reserving(list(self._reserved))
        for reservation in wanted:
            fits = reservation.weights in residents and reservation.num_samples <= self.room
            if fits and not self._is_void(reservation.key, reservation.lease):
                self._reserved[reservation.key] = (reservation, now)
                self._occupancy.put("reserved", reservation.key, reservation.weights, reservation.num_samples)

    def await_handover(self, task: GroupTask, weights: WeightsId, now: float) -> SequencesHandedOver | None:
        """Returns the samples to resume if their handover has arrived already; else awaits it."""
        if self._is_void(task.key, task.lease):
            return None
        self._note_lease(task.key, task.lease)
        self._give_up_reserving([task.key])
        self._awaited[task.key] = Awaited(task=task, since=now, weights=weights)
        self._occupancy.put("awaited", task.key, weights, len(task.samples))
        early = self._early.pop(task.key, None)
        if early is None or not self.receive(early[0], now):
            return None
        return early[0]

    def receive(self, handed: SequencesHandedOver, now: float) -> bool:
        """True if these samples may resume here."""
        awaited = self._awaited.get(handed.key)
        if awaited is None or awaited.task.lease != handed.lease:
            if not self._is_void(handed.key, handed.lease):
                self._early[handed.key] = (handed, now)
            return False
        if self._keeps_version and handed.weights != awaited.weights:
            return False
        self._stop_awaiting(handed.key)
        samples = {progress.key.sample for progress in handed.progress}
        if samples:
            running = Running(lease=handed.lease, samples=set(), weights=awaited.weights)
            self._running[handed.key] = running
            self._run(handed.key, running, samples)
        return bool(samples)

    def give_up_waiting(self, now: float) -> list[GroupTask]:
        """Tasks whose handover is overdue: they begin from data's progress."""
        self._give_up_reserving([key for key, kept in self._reserved.items() if now - kept[1] >= RESERVED_FOR_S])
        self._early = {key: kept for key, kept in self._early.items() if now - kept[1] < AWAIT_S}
        overdue = [awaited for awaited in self._awaited.values() if now - awaited.since >= AWAIT_S]
        tasks = [self.begin(replace(each.task, is_handed_over=False), each.weights) for each in overdue]
        for each in overdue:
            self._stop_awaiting(each.task.key)
        return [
            replace(task, exact=each.weights) for each, task in zip(overdue, tasks, strict=True) if task is not None
        ]

    def _run(self, key: GroupKey, running: Running, samples: Iterable[int]) -> None:
        for sample in samples:
            self._num_sample_runs += 1
            running.samples.add(sample)
            running.sample_runs[sample] = self._num_sample_runs
        running.change()
        self._occupancy.put("running", key, running.weights, len(running.samples))

    def switch_weights(self, weights: WeightsId, *, of: WeightsId | None = None) -> None:
        """Moves all running work to `weights`. `of`: only work on these."""
        for running in self._running.values():
            if of in (None, running.weights):
                running.change(weights=weights)
        for awaited in self._awaited.values():
            if of in (None, awaited.weights):
                awaited.weights = weights
        self._occupancy.switch_weights(("running", "awaited"), weights, of=of)

    @property
    def oldest(self) -> WeightsId | None:
        """The oldest weights in use whose work may all continue on other weights."""
        return self._occupancy.oldest

    def weights_of(self, key: GroupKey) -> WeightsId | None:
        """The weights that this group runs on here."""
        running = self._running.get(key)
        return None if running is None else running.weights

    # ── reports ───────────────────────────────────────────────────────────────────────────────────────────────────

    def running(self) -> tuple[HeldGroup, ...]:
        return tuple(running.held(key) for key, running in self._running.items())

    def still_in_training(self) -> list[tuple[SampleKey, int]]:
        """Training samples that already ran at the last call, with the numbers of their runs: younger ones are cheap to
        repeat, and most end before the next call."""
        before, self._tellings_before = self._tellings_before, self._num_sample_runs
        return [
            (SampleKey(group=key, sample=sample), running.sample_runs[sample])
            for key, running in self._running.items()
            if key.evaluation is None
            for sample in sorted(running.samples)
            if running.sample_runs[sample] <= before
        ]

    def groups(self) -> tuple[HeldGroup, ...]:
        held = {key: running.held(key) for key, running in self._running.items()}
        for key, awaited in self._awaited.items():
            samples = _merge(held.get(key), awaited.task.samples)
            held[key] = HeldGroup(key=key, lease=awaited.task.lease, samples=samples, weights=awaited.weights)
        for key, stopping in self._stopping.items():
            held[key] = replace(stopping, samples=_merge(held.get(key), stopping.samples))
        ended: dict[GroupKey, list[int]] = {}
        for sample_key in self._unconfirmed:
            ended.setdefault(sample_key.group, []).append(sample_key.sample)
        for key, samples_of_it in ended.items():
            runs = held.get(key)
            if runs is not None:
                held[key] = replace(runs, samples=_merge(runs, samples_of_it))
            else:
                lease, samples = self._last_lease.get(key, 0), tuple(sorted(samples_of_it))
                held[key] = HeldGroup(key=key, lease=lease, samples=samples, is_over=True)
        return tuple(held.values())

    def reserved(self) -> tuple[HeldGroup, ...]:
        return tuple(HeldGroup(key=key, lease=kept.lease, samples=()) for key, (kept, _) in self._reserved.items())

    def to_deliver(self, *, all_of_them: bool) -> tuple[Trajectory, ...]:
        unsent, self._unsent = self._unsent, []
        return tuple(self._unconfirmed.values()) if all_of_them else tuple(unsent)

    def _drop(self, key: GroupKey, samples: set[int]) -> None:
        running = self._running.get(key)
        if running is not None:
            running.samples -= samples
            running.change()
            self._occupancy.put("running", key, running.weights, len(running.samples))
            if not running.samples:
                self._stop_running(key)

    def _stop_running(self, key: GroupKey) -> None:
        del self._running[key]
        self._occupancy.free("running", [key])

    def _stop_awaiting(self, key: GroupKey) -> Awaited | None:
        self._occupancy.free("awaited", [key])
        return self._awaited.pop(key, None)

    def _give_up_reserving(self, keys: Iterable[GroupKey]) -> None:
        for key in keys:
            self._reserved.pop(key, None)
            self._occupancy.free("reserved", [key])

    def _note_lease(self, key: GroupKey, lease: int) -> None:
        _raise(self._last_lease, key, lease)
        _raise(self._floor, key, lease)

    def _is_void(self, key: GroupKey, lease: int) -> bool:
        """True unless an order under this lease may be the first for this group."""
        return lease < self._floor.get(key, 0) or lease <= self._last_lease.get(key, 0)


def _merge(held: HeldGroup | None, samples: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*(() if held is None else held.samples), *samples}))


def _raise(leases: dict[GroupKey, int], key: GroupKey, lease: int) -> None:
    if lease > leases.get(key, 0):
        leases.pop(key, None)
        leases[key] = lease
    if len(leases) > MAX_LEASES:
        del leases[next(iter(leases))]
