"""A replica's body on real engines, under the fleet's virtual clock, which advances by the time of each piece of work.

    orders ──▶ carried out between two steps ──▶ a step of each slot that has work ──▶ ended samples ──▶ …

Replicas take turns on the processor without effect on each other: each has it alone while it works.

Invariants:
- an order waits for the end of the step in progress, as in a live replica;
- seconds are those of the machine's clock: this thread's own.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from engine.inference.port import SequenceOutput
from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    ResumeSequences,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_rollout import (
    LoadMeasured,
    SequencesHandedOver,
    TrajectoriesEnded,
    WeightsInstalled,
)
from engine.pipeline.records import HeldGroup, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId
from engine.sim.costs.grading import grading_s
from engine.sim.fleet.setup import Setup
from engine.sim.kernel import Kernel
from tests.bench.engine.deciding.engine import CountingEngine, together
from tests.bench.engine.deciding.machine import Machine
from tests.bench.engine.deciding.samples import Moved, Slot, begun, runs_of

MICROSECOND: Final = 1e-6
"""The minimum time of a piece of work, so that time advances."""


class EngineBody:
    def __init__(
        self,
        setup: Setup,
        *,
        kernel: Kernel,
        tell: Callable[[float, Message], None],
        send: Callable[[int, float, Message], None],
        machine: Machine,
    ) -> None:
        self._setup, self._kernel, self._tell, self._send, self._machine = setup, kernel, tell, send, machine
        num = setup.slots.num
        self._slots = [Slot(engine=machine.engine(slots=num)) for _ in range(num)]
        self._newest = self._slots[0]
        self._orders: deque[Effect] = deque()
        self._is_working = False
        self._versions: dict[int, WeightsId] = {}
        # What happened so far:
        self.busy_s = self.held_up_s = self.kv_token_s = 0.0
        self.num_evicted = 0
        self.durations_s: list[float] = []
        """The time of each sample from its order to its last token."""
        self.first_announced_at: dict[WeightsId, float] = {}

    # ── the fleet's calls ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def decoding(self) -> "EngineBody":
        return self

    @property
    def is_empty(self) -> bool:
        return not (self._orders or any(slot.live for slot in self._slots))

    @property
    def num_written(self) -> int:
        return together([slot.engine.counted for slot in self._slots]).num_decoded

    @property
    def num_prefilled(self) -> int:
        return together([slot.engine.counted for slot in self._slots]).num_prefilled

    @property
    def engines(self) -> list[CountingEngine]:
        return [slot.engine for slot in self._slots]

    def advance(self, now: float) -> None:
        """Completes the work that is done by now."""

    def measure(self) -> LoadMeasured:
        views = {slot.weights: slot.engine.view() for slot in self._slots}
        return LoadMeasured(
            kv_used=sum(view.kv_used for view in views.values()) / len(self._slots),
            num_tokens=sum(view.num_decoded for view in views.values()),
            kv_by_weights=tuple((weights, view.kv_used / len(self._slots)) for weights, view in sorted(views.items())),
        )

    def perform(self, effect: Effect) -> None:
        self._orders.append(effect)
        if not self._is_working:
            self._is_working = True
            self._kernel.after(0.0, self._work)

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        if self._orders:
            effect = self._orders.popleft()
            seconds, then = self._timed(partial(self._carry_out, effect))
            self.held_up_s += seconds
        elif any(slot.live for slot in self._slots):
            seconds, then = self._timed(self._step)
            self.busy_s += seconds
        else:
            self._is_working = False
            return
        view = self.measure()
        self.kv_token_s += seconds * view.kv_used * self._setup.room.kv_tokens
        self._kernel.after(seconds, partial(self._end, then))

    def _end(self, then: Callable[[], None]) -> None:
        then()
        self._work()

    def _timed(self, piece: Callable[[], Callable[[], None]]) -> tuple[float, Callable[[], None]]:
        started = self._machine.clock()
        then = piece()
        return max(MICROSECOND, self._machine.clock() - started), then

    def _step(self) -> Callable[[], None]:
        ended: list[tuple[Slot, SequenceOutput]] = []
        stepped = [slot for slot in self._slots if slot.live]
        for slot in stepped:
            ended += [(slot, output) for output in slot.engine.step()]
        return partial(self._hand_in, [slot.weights for slot in stepped], ended)

    def _hand_in(self, wrote: Sequence[WeightsId], ended: Sequence[tuple[Slot, SequenceOutput]]) -> None:
        now = self._kernel.now
        for weights in wrote:
            self.first_announced_at.setdefault(weights, now)
        for slot, output in ended:
            live = slot.live.pop(output.sequence_id)
            self.durations_s.append(now - live.begun_at)
            done = TrajectoriesEnded(trajectories=(self._trajectory(live.key, output),))
            self._tell(grading_s(self._setup.book), done)

    def _trajectory(self, key: SampleKey, output: SequenceOutput) -> Trajectory:
        runs = runs_of(output.versions, self._versions)
        prompt = self._setup.work(key).prompt
        return Trajectory(
            key=key,
            weights=min(run.weights for run in runs),
            runs=runs,
            reward=float(key.sample % 2),
            num_tokens=prompt + len(output.token_ids),
        )

    # ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _carry_out(self, effect: Effect) -> Callable[[], None]:
        match effect:
            case StartSequences():
                for task in effect.tasks:
                    slot = self._newest if task.exact is None else self._slot_of(task.exact)
                    self._submit(slot, begun(task, self._setup, at=self._kernel.now))
                return _nothing
            case InstallWeights():
                return self._install(effect)
            case StopSequences():
                for group in effect.groups:
                    for slot in self._slots:
                        slot.engine.abort(self._take_out(slot, group))
                return _nothing
            case HandOverSequences():
                return self._hand_over(effect)
            case ResumeSequences():
                moved: list[Moved] = effect.handed.payload  # type: ignore[assignment]
                self._submit(self._slot_of(effect.handed.weights), moved)
                return _nothing
            case _:
                raise TypeError(f"a replica of the bench does not do {type(effect).__name__}")

    def _slot_of(self, weights: WeightsId) -> Slot:
        if len(self._slots) == 1:
            return self._newest
        return next(slot for slot in self._slots if slot.weights == weights)

    @staticmethod
    def _submit(slot: Slot, these: "Iterator[Moved] | Sequence[Moved]") -> None:
        for each in these:
            slot.live[each.request.sequence_id] = each.live
            slot.engine.submit([each.request])

    def _install(self, effect: InstallWeights) -> Callable[[], None]:
        weights = effect.manifest.weights
        slot = self._newest if effect.over is None else self._slot_of(effect.over)
        if effect.over is None and len(self._slots) > 1:
            free = [slot for slot in self._slots if slot.weights not in effect.keeps]
            slot = min(free, key=lambda slot: slot.weights)
            assert not slot.live, f"{weights} over {slot.weights}, on which {len(slot.live)} run"
        interrupted = []
        if effect.in_flight == "reprefill":
            interrupted = slot.engine.export(list(slot.live), leave=True, with_kv=False)
        slot.engine.install(self._machine.version(weights))
        slot.engine.counted.installs += 1
        slot.weights, self._newest = weights, slot
        self._versions[weights.version] = weights
        if interrupted:
            slot.engine.submit(interrupted)
        return partial(self._tell, 0.0, WeightsInstalled(weights=weights))

    def _hand_over(self, effect: HandOverSequences) -> Callable[[], None]:
        moved: list[Moved] = []
        for slot in self._slots:
            live = {name: slot.live[name] for name in slot.names_of(effect.group)}
            for request in slot.engine.export(list(live), leave=True, with_kv=True):
                moved.append(Moved(live=live[request.sequence_id], request=request))
                del slot.live[request.sequence_id]
                pages = None if request.progress is None else request.progress.kv
                slot.engine.counted.moved += 0 if pages is None else pages.num_tokens
        handed = SequencesHandedOver(
            incarnation=effect.host_incarnation,
            key=effect.group.key,
            lease=effect.group.lease,
            weights=effect.weights,
            progress=tuple(self._progress(each) for each in moved),
            payload=moved,
        )
        return partial(self._send, effect.host, 0.0, handed)

    def _progress(self, moved: Moved) -> SampleProgress:
        versions = () if moved.request.progress is None else moved.request.progress.versions
        return SampleProgress(key=moved.live.key, num_tokens=len(versions), runs=runs_of(versions, self._versions))

    def _take_out(self, slot: Slot, group: HeldGroup) -> list[str]:
        names = slot.names_of(group)
        for name in names:
            del slot.live[name]
        return names


def _nothing() -> None:
    pass
