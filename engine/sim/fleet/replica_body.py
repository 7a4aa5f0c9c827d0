"""A replica's body in the fleet: carries its brain's effects out on a batch that is decoded analytically.

Invariant: every change of the batch first advances it to now, then schedules its next end again.
"""

from collections import deque
from collections.abc import Callable

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
from engine.pipeline.records import GroupTask, HeldGroup, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import NO_WEIGHTS
from engine.sim.costs.grading import grading_s
from engine.sim.costs.repack import move_s
from engine.sim.fleet.decoding import Decoding
from engine.sim.fleet.sequence import Sequence
from engine.sim.fleet.setup import Setup
from engine.sim.kernel import Kernel


class ReplicaBody:
    def __init__(
        self,
        setup: Setup,
        *,
        kernel: Kernel,
        tell: Callable[[float, Message], None],
        send: Callable[[int, float, Message], None],
    ) -> None:
        """`tell` delivers a message to the body's own brain after a delay; `send` to another replica."""
        self._setup, self._kernel, self._tell, self._send = setup, kernel, tell, send
        self.decoding = Decoding(
            setup.decode,
            prefill_s=setup.prefill_s,
            kv_tokens=setup.room.kv_tokens,
            max_batch=setup.max_batch,
            slots=setup.slot_cost,
        )
        self._fresh = NO_WEIGHTS
        self._plan = 0
        self._link_free_at = 0.0

    def perform(self, effect: Effect) -> None:
        now, decoding = self._kernel.now, self.decoding
        decoding.advance(now)
        match effect:
            case StartSequences():
                for task in effect.tasks:
                    decoding.add(self._begun(task, now), now)
            case ResumeSequences():
                handed: list[Sequence] = effect.handed.payload  # type: ignore[assignment]
                for sequence in handed:
                    sequence.lease = effect.handed.lease
                    if self._setup.schedule.keeps_version:
                        sequence.weights = effect.handed.weights
                    if sequence.answer:
                        self._send_away(sequence)
                decoding.add((sequence for sequence in handed if not sequence.answer), now)
            case HandOverSequences():
                self._hand_over(effect, now)
            case StopSequences():
                for group in effect.groups:
                    self._take_out(group)
                decoding.admit(now)
            case InstallWeights():
                self._install(effect, now)
            case _:
                raise TypeError(f"a replica of the fleet does not do {type(effect).__name__}")
        self._plan_next()

    def measure(self) -> LoadMeasured:
        self.decoding.advance(self._kernel.now)
        kept = self.decoding.kv_by_weights()
        return LoadMeasured(
            kv_used=min(1.0, sum(kept.values())),
            num_tokens=self.decoding.num_written,
            kv_by_weights=tuple(sorted(kept.items())),
        )

    # ── sequences ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _begun(self, task: GroupTask, now: float) -> list[Sequence]:
        """A group's prompt is prefilled once; its samples share it."""
        sequences = []
        for sample in task.samples:
            key = SampleKey(group=task.key, sample=sample)
            work = self._setup.work(key)
            sequence = Sequence(
                key=key,
                lease=task.lease,
                weights=task.exact or self._fresh,
                prompt=work.prompt,
                left=list(work.turns),
                calls=deque(work.calls),
                context=work.prompt,
                is_cached=True,
            )
            sequences.append(sequence)
        self.decoding.read_prompt(sequences[0].prompt, now)
        return sequences

    def _plan_next(self) -> None:
        self._plan += 1
        at, plan = self.decoding.next_at(), self._plan
        if at is not None:
            self._kernel.at(max(at, self._kernel.now), lambda: self._arrive(plan))

    def _arrive(self, plan: int) -> None:
        if plan != self._plan:
            return
        self.decoding.arrive()
        self._settle()
        self._plan_next()

    def _settle(self) -> None:
        now = self._kernel.now
        for sequence in self.decoding.ended():
            if sequence.calls:
                self._call(sequence)
            else:
                self._tell(grading_s(self._setup.book), TrajectoriesEnded(trajectories=(self._trajectory(sequence),)))
        self.decoding.admit(now)

    def _call(self, sequence: Sequence) -> None:
        call = sequence.calls.popleft()
        sequence.left.pop(0)
        sequence.answer, sequence.back_at = call.tokens, self._kernel.now + call.takes_s
        self._send_away(sequence)

    def _send_away(self, sequence: Sequence) -> None:
        trip = sequence.trip
        self.decoding.send_away(sequence)
        self._kernel.at(max(self._kernel.now, sequence.back_at), lambda: self._come_back(sequence, trip))

    def _come_back(self, sequence: Sequence, trip: int) -> None:
        if sequence.trip != trip:
            return
        now = self._kernel.now
        self.decoding.advance(now)
        self._settle()
        answer, sequence.answer = sequence.answer, 0
        self.decoding.return_after_turn(sequence, answer, now)
        self._plan_next()

    def _trajectory(self, sequence: Sequence) -> Trajectory:
        """The runs are set even if there is only one: tokens are counted to weights by them."""
        return Trajectory(
            key=sequence.key,
            weights=min(run.weights for run in sequence.runs),
            runs=tuple(sequence.runs),
            reward=float(sequence.key.sample % 2),
            num_tokens=sequence.context,
        )

    # ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hand_over(self, effect: HandOverSequences, now: float) -> None:
        taken = self._take_out(effect.group)
        self.decoding.admit(now)
        setup = self._setup
        tokens = sum(sequence.context for sequence in taken if sequence.is_cached)
        whole_s = move_s(setup.device, setup.model, tp=setup.tp, tokens=tokens, book=setup.book)
        fixed_s = move_s(setup.device, setup.model, tp=setup.tp, tokens=0, book=setup.book)
        self._link_free_at = max(now, self._link_free_at) + whole_s - fixed_s
        handed = SequencesHandedOver(
            incarnation=effect.host_incarnation,
            key=effect.group.key,
            lease=effect.group.lease,
            weights=effect.weights,
            progress=tuple(
                SampleProgress(key=each.key, num_tokens=each.num_written, runs=tuple(each.runs)) for each in taken
            ),
            payload=taken,
        )
        self._send(effect.host, self._link_free_at + fixed_s - now, handed)

    def _take_out(self, group: HeldGroup) -> list[Sequence]:
        taken = self.decoding.take_out([SampleKey(group=group.key, sample=sample) for sample in group.samples])
        for sequence in taken:
            sequence.trip += 1
        return taken

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _install(self, effect: InstallWeights, now: float) -> None:
        weights = effect.manifest.weights
        self._fresh = weights
        seconds = self._setup.install_s + self.decoding.install(weights, effect.keeps)
        self.decoding.hold_up(now, seconds)
        if effect.in_flight in ("reprefill", "keep"):
            self.decoding.carry_on(weights, now, reads_again=effect.in_flight == "reprefill", of=effect.over)
        self._tell(seconds, WeightsInstalled(weights=weights))
