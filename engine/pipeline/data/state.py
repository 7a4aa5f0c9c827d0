"""Data's durable state. It changes only in `apply`, one record at a time.

    taken ──▶ unfinished groups ──▶ ready ──▶ batch ──▶ history (until a checkpoint covers it) ──▶ ledger
                     └──▶ filtered, failed          └──▶ dropped_stale        ▲
                                                         a dead trainer's steps are undone

Invariants:
- the state follows from the snapshot and the records alone: replaying a log gives the same state;
- a group is in one of these places at a time, and its ordinal is in the ledger as soon as the group has ended;
- after a fork only steps in the new trainer's checkpoint count as trained.
"""

# Over budget: `apply` and all state changes in one file.

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from engine.pipeline.data.ends import EndedSamples
from engine.pipeline.data.evaluation import Evaluation
from engine.pipeline.data.groups import GroupBook, OpenGroup
from engine.pipeline.data.ledger import End, Ledger
from engine.pipeline.failure_counts import NO_FAILURES
from engine.pipeline.journal import (
    BatchMade,
    CheckpointKept,
    DataSnapshot,
    EvaluationClosed,
    EvaluationLoosened,
    GroupGivenUp,
    GroupsDropped,
    Record,
    StepTaken,
    StepTrained,
    TrainerForked,
    TrainingClosed,
    TrajectoryTaken,
)
from engine.pipeline.messages.to_driver import EvaluationReported, FaultReported
from engine.pipeline.plan import Plan
from engine.pipeline.records import CompleteGroup, DataProgress, GroupKey, Trajectory
from engine.policy.lineage import BASE_WEIGHTS, Lineage, WeightsId
from engine.policy.sampling import has_signal

# Steps whose trajectories stay in memory until a checkpoint covers them. Prompts of older steps are generated again.
MAX_STEPS_KEPT: Final = 8
# Groups filtered for one batch, in steps' worth. A solved, or hopeless, task would be filtered forever.
MAX_FILTERED_STEPS: Final = 10


class DataState:
    def __init__(self, plan: Plan, *, start_step: int = 0, progress: DataProgress | None = None) -> None:
        self.plan = plan
        self.ledger = Ledger(progress or DataProgress())
        self.training = GroupBook(
            num_samples=plan.group_size,
            num_spare=plan.num_spare,
            num_least=plan.min_group,
            replaces=plan.replaces_failed,
        )
        self.evaluations: list[Evaluation] = []
        self.ready: list[CompleteGroup] = []
        self._ready_ordinals: set[int] = set()
        self.batch: StepTaken | None = None
        self.history: deque[StepTaken] = deque()
        self.trained_version = start_step
        self.checkpointed = start_step
        self.first_version = start_step
        """The current trainer's first version, which it always publishes."""
        self.lineage = Lineage()
        self.is_over = False
        self.reports: list[EvaluationReported | FaultReported] = []
        self.failures = NO_FAILURES
        self.num_ended_groups = 0
        self.num_lost_groups = 0
        """Groups that ended untrained since this process started."""
        self.num_filtered_in_a_row = 0
        self.ended = EndedSamples(group_size=plan.group_size, staleness=self.staleness)
        # A resumed attempt evaluates version 0 if no attempt before it did. If an evaluation was due at its step, it is
        # repeated, since it may not have finished.
        if progress is not None and progress.base_is_due:
            self._open_evaluation(0)
        if plan.evaluates(start_step) and start_step < plan.steps:
            self._open_evaluation(start_step)

    @property
    def num_open(self) -> int:
        in_training = len(self.batch.ordinals) if self.batch is not None else 0
        return len(self.training) + len(self.ready) + in_training

    def counts(self) -> dict[str, int]:
        num_replaced = self.failures.num_replacements
        replaced = {"replaced": num_replaced} if num_replaced else {}
        return {**self.ledger.counts(num_open=self.num_open * self.plan.group_size), **replaced}

    def staleness(self, trajectory: Trajectory) -> int:
        """Staleness of the stalest token, if the trajectory were trained on now."""
        return max(self.lineage.staleness(weights, at=self.trained_version) for weights in trajectory.writers)

    def may_train(self, trajectory: Trajectory) -> bool:
        return self.plan.schedule.may_train(staleness=self.staleness(trajectory))

    def may_start_on(self, weights: WeightsId) -> bool:
        """False for base weights that are here only for their evaluation, since training is further."""
        return weights != BASE_WEIGHTS or self.first_version == 0

    def is_wanted(self, trajectory: Trajectory) -> bool:
        """True if the trajectory is new and needed."""
        key = trajectory.key
        if key.group.evaluation is not None:
            return any(evaluation.accepts(trajectory) for evaluation in self.evaluations)
        if not self.training.misses(key) and not self.is_unknown(key.group):
            return False
        # Unusable trajectories of a dead branch are generated again: their prompts are fine.
        is_of_the_dead = any(weights.epoch < self.lineage.epoch for weights in trajectory.writers)
        return not is_of_the_dead or self.may_train(trajectory)

    def is_unknown(self, key: GroupKey) -> bool:
        """True for a group without an end that is in no place here: it may have begun before data restarted."""
        if key.evaluation is not None or key in self.training or self.ledger.has_ended(key.ordinal):
            return False
        in_training = self.batch is not None and key.ordinal in self.batch.ordinals
        return not in_training and key.ordinal not in self._ready_ordinals

    # ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, record: Record) -> None:
        match record:
            case TrajectoryTaken():
                self._take(record.trajectory)
            case GroupGivenUp():
                self._give_up(record.key, record.reason)
            case GroupsDropped():
                self._drop(record)
            case BatchMade():
                self._make_batch(record)
            case StepTrained():
                self._end_step(record.step)
            case CheckpointKept():
                self.checkpointed = max(self.checkpointed, record.step)
                self._shorten_history()
            case TrainerForked():
                self._fork(record)
            case TrainingClosed():
                self.is_over = True
                if not self._evaluations_of(record.version):  # a new trainer may repeat it during the evaluation
                    self._open_evaluation(record.version)
            case EvaluationLoosened():
                for evaluation in self._evaluations_of(record.version):
                    evaluation.allow_any_version()
            case EvaluationClosed():
                for evaluation in self._evaluations_of(record.version):
                    self.evaluations.remove(evaluation)
                    self.reports += evaluation.reports()

    def _take(self, trajectory: Trajectory) -> None:
        key = trajectory.key.group
        if key.evaluation is not None:
            for evaluation in self.evaluations:
                if evaluation.accepts(trajectory):
                    evaluation.take(trajectory)
            return
        group = self.training.get(key) or self.training.open(key)
        num_begun, num_taken = group.num_begun, len(group.taken)
        is_closed = self.training.take(trajectory) is not None
        if trajectory.failure and len(group.taken) > num_taken:
            self.failures = self.failures.add(samples=1, replacements=group.num_begun - num_begun)
        if is_closed:
            self._complete(group)

    def _complete(self, group: OpenGroup) -> None:
        if not group.has_enough:
            self._end(group.key.ordinal, "failed")
            self.failures = self.failures.add(groups=1)
            self.ended.failed(group)
            return
        self.ended.done_without(group)
        in_order = tuple(sorted(group.finished, key=lambda finished: finished.key.sample))
        may_filter = self.num_filtered_in_a_row < MAX_FILTERED_STEPS * self.plan.groups_per_step
        rewards = [trajectory.reward for trajectory in in_order if trajectory.trusted]
        if self.plan.filters and may_filter and not has_signal(rewards):
            self._end(group.key.ordinal, "filtered", num_failed=self.plan.group_size - len(in_order))
            self.num_filtered_in_a_row += 1
            self.ended.filtered(group)
            return
        self.ready.append(CompleteGroup(key=group.key, trajectories=in_order))
        self._ready_ordinals.add(group.key.ordinal)

    def _keep_ready(self, groups: Iterable[CompleteGroup]) -> None:
        self.ready = list(groups)
        self._ready_ordinals = {group.key.ordinal for group in self.ready}

    def _give_up(self, key: GroupKey, reason: str) -> None:
        for evaluation in self.evaluations:
            evaluation.give_up(key)
        group = self.training.get(key)
        if group is not None:
            self.training.close(group)
            self.failures = self.failures.add(samples=len(group.missing))
            self.ended.given_up(group, reason, newest=WeightsId(self.lineage.epoch, self.trained_version))
            self._complete(group)

    def _drop(self, record: GroupsDropped) -> None:
        ordinals = set(record.ordinals)
        dropped = [group for group in self.ready if group.key.ordinal in ordinals]
        self._keep_ready(group for group in self.ready if group.key.ordinal not in ordinals)
        for group in dropped:
            self.ended.dropped(group)
            self._end(group.key.ordinal, "dropped_stale", num_failed=self._num_failed_of(group))

    def _make_batch(self, record: BatchMade) -> None:
        wanted = set(record.ordinals)
        chosen = [group for group in self.ready if group.key.ordinal in wanted]
        chosen.sort(key=lambda group: group.key.ordinal)
        self._keep_ready(group for group in self.ready if group.key.ordinal not in wanted)
        num_samples = len(chosen) * self.plan.group_size
        failed = tuple((group.key.ordinal, num) for group in chosen if (num := self._num_failed_of(group)))
        num_failed = sum(num for _, num in failed)
        progress = self.ledger.progress_if_trained(record.ordinals, num_samples=num_samples, num_failed=num_failed)
        self.batch = StepTaken(
            step=record.step,
            ordinals=record.ordinals,
            groups=tuple(chosen),
            progress=replace(progress, base_is_due=bool(self._evaluations_of(0))),
            failed=failed,
        )
        self.num_filtered_in_a_row = 0

    def _num_failed_of(self, group: CompleteGroup) -> int:
        return self.plan.group_size - len(group.trajectories)

    def _end_step(self, step: int) -> None:
        batch = self.batch
        assert batch is not None and batch.step == step, f"step {step} ended, which was not in training"
        failed = dict(batch.failed)
        for ordinal in batch.ordinals:
            self._end(ordinal, "trained", num_failed=failed.get(ordinal, 0))
        self.failures = self.failures.add(short_groups=len(failed))
        self.batch, self.trained_version = None, step
        self.history.append(batch)
        self._shorten_history()
        if self.plan.evaluates(step) and step != self.plan.steps:
            self._open_evaluation(step)

    def _shorten_history(self) -> None:
        while self.history and self.history[0].step <= self.checkpointed:
            self.history.popleft()
        for at in range(len(self.history) - MAX_STEPS_KEPT):
            taken = self.history[at]
            if taken.groups:
                self.history[at] = replace(taken, groups=())

    def _end(self, ordinal: int, end: End, *, num_failed: int = 0) -> None:
        self.num_ended_groups += 1
        self.num_lost_groups += end != "trained"
        self.ledger.end(ordinal, end, num_samples=self.plan.group_size, num_failed=num_failed)

    # ── a new trainer ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fork(self, record: TrainerForked) -> None:
        lost = [taken for taken in self.history if taken.step > record.step]
        knows_all = [taken.step for taken in lost] == list(range(record.step + 1, self.trained_version + 1))
        returned = [group for taken in lost for group in taken.groups]
        if self.batch is not None:
            returned += self.batch.groups
        self.lineage = self.lineage.forked(record.epoch, at=record.step)
        self.trained_version = self.checkpointed = self.first_version = record.step
        self.batch, self.is_over = None, self.is_over and self.plan.only_evaluates  # such a job's weights are the same
        self.history = deque(taken for taken in self.history if taken.step <= record.step)
        if knows_all:
            for taken in lost:
                failed = dict(taken.failed)
                for ordinal in taken.ordinals:
                    num_failed = failed.get(ordinal, 0)
                    self.ledger.take_back(ordinal, num_samples=self.plan.group_size, num_failed=num_failed)
        else:  # an older checkpoint than data's history: only the checkpoint's own progress fits
            num_trained = self.ledger.counts(num_open=0)["trained"] - dict(record.progress.ledger).get("trained", 0)
            self.ledger = Ledger(record.progress, num_rolled_back=self.ledger.num_rolled_back + max(0, num_trained))
        survived = [group for group in (*returned, *self.ready) if self._survives(group.key, group.trajectories)]
        self._keep_ready(survived)
        for group in self.training:
            if not self._survives(group.key, tuple(group.finished)):
                self.training.close(group)
        self._fork_evaluations(record)

    def _survives(self, key: GroupKey, trajectories: tuple[Trajectory, ...]) -> bool:
        """True if the group is kept. Others are dropped without an end: their prompts are generated again."""
        return not self.ledger.has_ended(key.ordinal) and all(map(self.may_train, trajectories))

    def _fork_evaluations(self, record: TrainerForked) -> None:
        self.evaluations = [evaluation for evaluation in self.evaluations if evaluation.version <= record.step]
        for evaluation in self._evaluations_of(record.step):
            evaluation.rename_weights(WeightsId(record.epoch, record.step))
        if record.progress.base_is_due:  # the new trainer has published them again
            for evaluation in self._evaluations_of(0):
                evaluation.rename_weights(BASE_WEIGHTS)

    # ── evaluations ───────────────────────────────────────────────────────────────────────────────────────────────

    def _open_evaluation(self, version: int) -> None:
        weights = WeightsId(self.lineage.epoch, version)
        self.evaluations.append(Evaluation(self.plan, weights=weights))

    def _evaluations_of(self, version: int) -> list[Evaluation]:
        return [evaluation for evaluation in self.evaluations if evaluation.version == version]

    def books(self) -> Iterator[GroupBook]:
        yield self.training
        for evaluation in self.evaluations:
            yield evaluation.groups

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> DataSnapshot:
        return DataSnapshot(
            progress=self.ledger.progress(),
            num_rolled_back=self.ledger.num_rolled_back,
            trained_version=self.trained_version,
            checkpointed=self.checkpointed,
            lineage=self.lineage,
            first_version=self.first_version,
            unfinished=tuple(group.taken for group in self.training if group.taken),
            ready=tuple(self.ready),
            batch=self.batch,
            history=tuple(self.history),
            evaluations=tuple(evaluation.view() for evaluation in self.evaluations),
            reports=tuple(self.reports),
            is_over=self.is_over,
            failures=self.failures,
            num_ended_groups=self.num_ended_groups,
            num_filtered_in_a_row=self.num_filtered_in_a_row,
        )

    @classmethod
    def restored(cls, plan: Plan, snapshot: DataSnapshot) -> "DataState":
        state = cls(plan)
        state.ledger = Ledger(snapshot.progress, num_rolled_back=snapshot.num_rolled_back)
        state.trained_version, state.checkpointed = snapshot.trained_version, snapshot.checkpointed
        state.lineage, state.first_version = snapshot.lineage, snapshot.first_version
        state.evaluations = [Evaluation.restored(view, plan) for view in snapshot.evaluations]
        for trajectories in snapshot.unfinished:
            for trajectory in trajectories:
                state._take(trajectory)
        state._keep_ready(snapshot.ready)
        state.batch, state.history = snapshot.batch, deque(snapshot.history)
        state.reports, state.is_over = list(snapshot.reports), snapshot.is_over
        state.failures, state.num_ended_groups = snapshot.failures, snapshot.num_ended_groups
        state.num_filtered_in_a_row = snapshot.num_filtered_in_a_row
        return state
