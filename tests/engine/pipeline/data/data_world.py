"""The brains of data and a few replicas, with scripted bodies and a network that a test controls.

Invariants asserted here, at the moment of a violation: a sample is trained at most once into the live weights; groups
are whole; a step gets one batch; one replica holds a lease; weights change only where nothing runs on them, and never
exceed the slots; data sends nothing that is not on its disk.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.pipeline.data.accounts import Owner
from engine.pipeline.data.brain import DataBrain
from engine.pipeline.data.groups import OpenGroup
from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    Persist,
    ReportProgress,
    ResumeSequences,
    Send,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.addresses import DATA, DRIVER, TRAINER, Address, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import (
    BatchWanted,
    Persisted,
    RepackPlanned,
    ReplicaGone,
    ResumedFrom,
    TrainingEnded,
)
from engine.pipeline.messages.to_driver import PartFinished, RunBroken
from engine.pipeline.messages.to_relay import WeightsWanted
from engine.pipeline.messages.to_rollout import (
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    VersionAnnounced,
    VersionMissing,
    WeightsInstalled,
)
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import Plan
from engine.pipeline.records import (
    AcknowledgedProgress,
    DataProgress,
    Failure,
    Move,
    SampleKey,
    SampleProgress,
    Trajectory,
    VersionRun,
)
from engine.pipeline.rollout.brain import RolloutBrain
from engine.policy.lineage import WeightsId
from tests.engine.pipeline.brain_builders import Disk, served


@dataclass
class Body:
    """One incarnation of a replica."""

    brain: RolloutBrain
    owner: Owner
    slots: set[WeightsId] = field(default_factory=set)
    running: dict[SampleKey, int] = field(default_factory=dict)
    """The lease under which each sample was begun."""
    weights: dict[SampleKey, WeightsId] = field(default_factory=dict)
    """The weights on which each sample runs."""
    num_tokens: dict[SampleKey, int] = field(default_factory=dict)
    words: dict[SampleKey, bytearray] = field(default_factory=dict)
    """A token is a byte."""
    voice: dict[SampleKey, int] = field(default_factory=dict)

    def progress_of(self, keys: list[SampleKey]) -> tuple[SampleProgress, ...]:
        return tuple(
            SampleProgress(
                key=key,
                num_tokens=self.num_tokens[key],
                runs=(VersionRun(weights=self.weights[key], num_tokens=self.num_tokens[key]),),
                packed_tokens=bytes(self.words[key]),
            )
            for key in keys
            if key in self.running
        )

    def increments_since(self, acknowledged: Sequence[AcknowledgedProgress]) -> tuple[SampleProgress, ...]:
        by_key = {each.key: each for each in acknowledged}
        return tuple(
            replace(
                whole,
                runs=tuple(
                    replace(run, num_tokens=run.num_tokens - by_key[whole.key].num_tokens) for run in whole.runs
                ),
                packed_tokens=whole.packed_tokens[by_key[whole.key].num_tokens :],
                since=by_key[whole.key].num_tokens,
                sample_run=by_key[whole.key].sample_run,
            )
            for whole in self.progress_of(list(by_key))
        )

    @property
    def in_use(self) -> set[WeightsId]:
        return {self.weights[key] for key in self.running}


class DataWorld:
    def __init__(self, plan: Plan, *, num_replicas: int) -> None:
        self.plan, self.now = plan, 0.0
        self.disk, self.unwritten = Disk(), list[Persist]()
        self.data, self.data_incarnation = DataBrain(plan), 0
        self.posted: list[tuple[Address, Message]] = []
        self.epoch, self.step = 0, 0
        self.resumed: ResumedFrom | None = None
        self.saved = {0: DataProgress()}
        self.trained: dict[int, frozenset[SampleKey]] = {}
        self.published = {WeightsId(0, 0)}
        self.leases: dict[tuple[SampleKey, int], Owner] = {}
        self.num_moved = self.num_lives = 0
        self.words: dict[SampleKey, set[bytes]] = {}
        """Every text that some run of each sample has generated."""
        self.is_finished = False
        self.bodies: dict[int, Body] = {}
        for replica in range(num_replicas):
            self._begin(replica, 0)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def deliver(self, at: int) -> None:
        self._receive(*self.posted.pop(at))

    def deliver_all(self, wanted: Callable[[Address, Message], bool] = lambda to, message: True) -> None:
        """Delivers these messages and those that follow from them, in order."""
        while (at := next((at for at, post in enumerate(self.posted) if wanted(*post)), None)) is not None:
            self.deliver(at)

    def _receive(self, to: Address, message: Message) -> None:
        if to == DATA:
            num_posted = len(self.posted)
            self._perform_data(self.data.handle(message, self.now))
            is_kept = isinstance(message, Persisted) or not self.unwritten or len(self.posted) == num_posted
            assert is_kept, "data sends what is not on its disk yet"
        elif to == TRAINER:
            assert isinstance(message, BatchReady)
            self._train(message)
        else:
            body = self.bodies[to.number]
            self._perform(body, body.brain.handle(message, self.now))

    def _send(self, effect: Send) -> None:
        message = effect.message
        if effect.to in (DATA, TRAINER) or effect.to.kind == "rollout":
            self.posted.append((effect.to, message))
        elif isinstance(message, WeightsWanted):
            self._serve(message)
        elif effect.to == DRIVER:
            assert not isinstance(message, RunBroken), message
            self.is_finished |= isinstance(message, PartFinished)

    def _serve(self, wish: WeightsWanted) -> None:
        """The relay, which has every published version."""
        to, wanted = rollout_address(wish.replica), max(self.published)
        wanted = wish.exact or wanted
        if wanted not in self.published:
            self.posted.append((to, VersionMissing(weights=wanted)))
        elif wanted != wish.held:
            self.posted.append((to, served(wanted.version, wanted.epoch)))

    # ── bodies ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, replica: int, incarnation: int) -> None:
        brain = RolloutBrain(self.plan, replica=replica, incarnation=incarnation)
        self.bodies[replica] = Body(brain=brain, owner=(replica, incarnation))

    def _perform(self, body: Body, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect)
                case StartSequences():
                    for task in effect.tasks:
                        known = {progress.key: progress for progress in task.progress}
                        for sample in task.samples:
                            key = SampleKey(group=task.key, sample=sample)
                            assert task.exact is not None, "a task names its weights"
                            self._run(body, key, task.lease, task.exact, known.get(key))
                case ResumeSequences():
                    self.num_moved += len(effect.handed.progress)
                    for progress in effect.handed.progress:
                        self._run(body, progress.key, effect.handed.lease, effect.handed.weights, progress)
                case StopSequences():
                    for group in effect.groups:
                        for sample in group.samples:
                            body.running.pop(SampleKey(group=group.key, sample=sample), None)
                case HandOverSequences():
                    self._hand_over(body, effect)
                case ReportProgress():
                    for key in body.running:
                        self._speak(body, key)
                    self._receive(
                        self._address(body), ProgressReported(progress=body.increments_since(effect.acknowledged))
                    )
                case InstallWeights():
                    self._install(body, effect)
                case _:
                    raise AssertionError(f"a rollout's body does not do {type(effect).__name__}")

    def _install(self, body: Body, effect: InstallWeights) -> None:
        if len(body.slots) == self.plan.weight_slots:
            over = min(body.slots - set(effect.keeps))
            assert over not in body.in_use, f"{over} is overwritten under {body.running}"
            body.slots.remove(over)
        weights = effect.manifest.weights
        body.slots.add(weights)
        self._receive(self._address(body), WeightsInstalled(weights=weights))

    def _run(self, body: Body, key: SampleKey, lease: int, weights: WeightsId, progress: SampleProgress | None) -> None:
        assert weights in body.slots, f"{key} runs on {weights} where {body.slots} are"
        assert key not in body.running, f"{key} runs twice on {body.owner}"
        holder = self.leases.setdefault((key, lease), body.owner)
        assert holder == body.owner, f"lease {lease} of {key} is with {holder} and with {body.owner}"
        for run in () if progress is None else progress.runs:
            assert run.weights == weights, f"{key} of {run.weights} resumes on {weights}"
        body.running[key], body.weights[key] = lease, weights
        words = b"" if progress is None else progress.packed_tokens
        assert len(words) == (0 if progress is None else progress.num_tokens), f"{key} resumes from {words!r}"
        generated = self.words.setdefault(key, {b""})
        assert words in generated, f"no run of {key} generated {words!r}: {generated}"
        body.words[key], body.num_tokens[key] = bytearray(words), len(words)
        self.num_lives += 1
        body.voice[key] = self.num_lives % 256
        if not words:
            self._speak(body, key)

    def _speak(self, body: Body, key: SampleKey) -> None:
        """Generates one token, which identifies the run."""
        body.words[key].append(body.voice[key])
        body.num_tokens[key] += 1
        self.words[key].add(bytes(body.words[key]))

    def _hand_over(self, body: Body, order: HandOverSequences) -> None:
        keys = [SampleKey(group=order.group.key, sample=sample) for sample in order.group.samples]
        handed = SequencesHandedOver(
            incarnation=order.host_incarnation,
            key=order.group.key,
            lease=order.group.lease,
            weights=order.weights,
            progress=body.progress_of(keys),
            payload=None,
        )
        for key in keys:
            body.running.pop(key, None)
        self.posted.append((rollout_address(order.host), handed))

    def _address(self, body: Body) -> Address:
        return rollout_address(body.owner[0])

    def finish(self, body: Body, key: SampleKey, failure: Failure | None = None) -> None:
        del body.running[key]
        trajectory = Trajectory(
            key=key,
            weights=body.weights[key],
            reward=float(key.sample),
            num_tokens=body.num_tokens[key],
            failure=failure,
        )
        self._receive(self._address(body), TrajectoriesEnded(trajectories=(trajectory,)))

    def running(self) -> list[tuple[Body, SampleKey]]:
        return [(body, key) for body in self.bodies.values() for key in body.running]

    # ── data's body ───────────────────────────────────────────────────────────────────────────────────────────────

    def _perform_data(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self.unwritten.append(effect)
            else:
                assert isinstance(effect, Send)
                self._send(effect)

    def write(self) -> None:
        """The disk completes its oldest write."""
        persist = self.unwritten.pop(0)
        self.disk.write(persist)
        self._receive(DATA, Persisted(serial=persist.serial))

    def restart_data(self) -> None:
        self.data_incarnation += 1
        self.unwritten.clear()
        recovered = self.disk.recovered()
        self.data = DataBrain(self.plan, incarnation=self.data_incarnation, recovered=recovered)

    # ── the trainer ───────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self) -> None:
        fields: dict[str, Any] = {"checkpointed": max(self.saved), "resumed": self.resumed}
        is_over = self.step == self.plan.steps
        if is_over:
            self.posted.append((DATA, TrainingEnded(weights=WeightsId(self.epoch, self.step), **fields)))
        else:
            self.posted.append((DATA, BatchWanted(step=self.step + 1, epoch=self.epoch, **fields)))

    def _train(self, batch: BatchReady) -> None:
        if batch.epoch != self.epoch or batch.step > self.step + 1:
            return
        keys = [trajectory.key for group in batch.groups for trajectory in group.trajectories]
        assert len(batch.groups) == self.plan.groups_per_step
        assert all(len(group.trajectories) == self.plan.group_size for group in batch.groups)
        assert len(set(keys)) == len(keys)
        if batch.step <= self.step:
            assert self.trained.get(batch.step) == frozenset(keys), f"step {batch.step} got two batches"
            return
        before = {key for step_keys in self.trained.values() for key in step_keys}
        assert not before & set(keys), f"step {batch.step} trains again on {before & set(keys)}"
        self.step = batch.step
        self.trained[self.step] = frozenset(keys)
        if self.plan.checkpoints(self.step):
            self.saved[self.step] = batch.progress
        self._publish()

    def _publish(self) -> None:
        self.published.add(WeightsId(self.epoch, self.step))
        for body in self.bodies.values():
            self.posted.append((self._address(body), VersionAnnounced(weights=WeightsId(self.epoch, self.step))))

    def lose_trainer(self) -> None:
        self.epoch, self.step = self.epoch + 1, max(self.saved)
        self.trained = {step: keys for step, keys in self.trained.items() if step <= self.step}
        self.resumed = ResumedFrom(step=self.step, progress=self.saved[self.step])
        self._publish()

    # ── the manager ───────────────────────────────────────────────────────────────────────────────────────────────

    def lose(self, replica: int) -> None:
        _, incarnation = self.bodies[replica].owner
        self.posted.append((DATA, ReplicaGone(replica=replica, incarnation=incarnation)))
        self._begin(replica, incarnation + 1)

    def moves(self) -> list[tuple[int, int, WeightsId]]:
        """Possible moves: source, host and weights."""
        bodies = self.bodies.items()
        return [
            (source, host, weights)
            for source, of in bodies
            for host, to in bodies
            for weights in sorted(of.in_use & to.slots)
            if source != host
        ]

    def wish_move(self, source: int, host: int, weights: WeightsId) -> None:
        of, to = self.bodies[source], self.bodies[host]
        move = Move(
            source=source,
            source_incarnation=of.owner[1],
            host=host,
            host_incarnation=to.owner[1],
            weights=weights,
        )
        self.posted.append((DATA, RepackPlanned(moves=(move,))))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for to in (DATA, *map(rollout_address, self.bodies)):
            self._receive(to, Tick())

    # ── all of it ─────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, *, rounds: int) -> None:
        """Without further faults: delivers every message and ends every sample."""
        for _ in range(rounds):
            if self.is_finished:
                return
            self.tick(1.1)
            self.ask()
            self.calm()
            for body, key in self.running():
                if key in body.running:
                    self.finish(body, key)

    def calm(self) -> None:
        """Delivers all messages and completes all writes, with those that follow."""
        while self.posted or self.unwritten:
            self.deliver_all()
            while self.unwritten:
                self.write()

    def check(self) -> None:
        state = self.data.state
        counts, progress = state.counts(), state.ledger.progress()
        num_ended = sum(stop - start for start, stop in progress.ended) * self.plan.group_size
        assert num_ended == sum(counts[end] for end in ("trained", "filtered", "dropped_stale", "failed"))
        open_ordinals = [group.key.ordinal for group in (*state.training, *state.ready)]
        open_ordinals += () if state.batch is None else state.batch.ordinals
        assert len(set(open_ordinals)) == len(open_ordinals), "a group is in one place at a time"
        assert not any(map(state.ledger.has_ended, open_ordinals))
        bound = (1 + self.plan.schedule.lead_steps) * self.plan.groups_per_step
        assert self.epoch or self.data_incarnation or len(open_ordinals) <= bound
        for unfinished in state.training:
            self._check_replacements(unfinished)
        for body, key in self.running():
            group = state.training.get(key.group)
            if group is not None and group.owner is not None and body.running[key] == group.lease:
                assert group.owner == body.owner, f"{key} runs on {body.owner} under the lease of {group.owner}"

    def _check_replacements(self, group: OpenGroup) -> None:
        plan = self.plan
        num_failed = sum(trajectory.failure is not None for trajectory in group.taken)
        num_wanted = min(max(0, num_failed - plan.num_spare), plan.group_size) if plan.replaces_failed else 0
        num_started = group.num_begun - plan.group_size - plan.num_spare
        assert num_started == num_wanted, f"{group.key}: {num_started} replacements of {num_failed} failed samples"
