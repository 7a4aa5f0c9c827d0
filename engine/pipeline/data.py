"""Data: hands out prompts, gathers what comes back, and makes batches of whole groups.

    prompt pool ──▶ groups in progress, by replica ──▶ experience buffer ──▶ the batch in training ──▶ ledger

Invariants:
- every sample of every prompt ends exactly once: trained, filtered, dropped_stale or failed;
- groups reach the trainer whole, and step S always gets the same batch, however often it is asked for;
- the schedule bounds what is open, so the buffer cannot grow without end;
- the evaluation before training is complete before the first prompt of training is handed out.
"""

from engine.pipeline.dealing import Dealer
from engine.pipeline.effects import Effect, Send
from engine.pipeline.evaluation import Evaluation
from engine.pipeline.groups import OpenGroup
from engine.pipeline.ledger import End, Ledger
from engine.pipeline.messages import (
    DRIVER,
    RELAY,
    TRAINER,
    BatchReady,
    BatchWanted,
    Message,
    ReplicaGone,
    ReplicaSynced,
    Tick,
    TrainingEnded,
    VersionReleased,
)
from engine.pipeline.plan import Plan
from engine.pipeline.records import BufferView, CompleteGroup, DataProgress, Trajectory
from engine.pipeline.reports import EvaluationStarted, LedgerReported, PartFinished, RunBroken, ToDriver
from engine.policy.recovery import grader_is_broken
from engine.policy.sampling import ReadyGroupView, oldest_first
from engine.policy.schedule import DemandView


class DataBrain:
    def __init__(self, plan: Plan, *, start_step: int = 0, progress: DataProgress | None = None) -> None:
        self._plan = plan
        self._ledger = Ledger(progress or DataProgress())
        self._dealer = Dealer(group_size=plan.group_size)
        self._ready: list[CompleteGroup] = []
        self._batch: BatchReady | None = None
        self._wanted_step: int | None = None
        self._trained_version = start_step
        self._next_ordinal = 0
        self._num_failed_groups = 0
        self._num_ended_groups = 0
        self._is_over = False
        # A resumed attempt has its "before" behind it; one that resumes where an evaluation was due repeats it, since
        # nobody knows whether it was finished.
        if plan.evaluates(start_step) and start_step != plan.steps:
            self._dealer.evaluations.append(self._evaluation_of(start_step))

    def handle(self, message: Message, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case ReplicaSynced():
                self._dealer.hear(message)
                for trajectory in message.finished:
                    effects += self._take(trajectory, now)
            case ReplicaGone():
                self._dealer.lose(message.replica, message.incarnation)
            case BatchWanted():
                effects += self._on_batch_wanted(message)
            case TrainingEnded():
                effects += self._on_training_ended(message)
            case Tick():
                pass
            case _:
                raise TypeError(f"data does not take {type(message).__name__}")
        return [
            *effects,
            *self._finish_evaluations(),
            *self._make_batch(),
            *self._dealer.deal(now, new_ordinal=self._new_ordinal),
        ]

    # ── what replicas deliver ─────────────────────────────────────────────────────────────────────────────────────

    def _take(self, trajectory: Trajectory, now: float) -> list[Effect]:
        wanted_by = trajectory.key.group.evaluation
        if wanted_by is not None:
            for evaluation in self._dealer.evaluations:
                if evaluation.version == wanted_by:
                    evaluation.take(trajectory)
            return []
        group = self._dealer.training.take(trajectory)
        if group is None:
            return []
        if trajectory.failure:
            return self._end_failed(group, trajectory.failure)
        in_order = tuple(sorted(group.finished, key=lambda finished: finished.key.sample))
        self._ready.append(CompleteGroup(key=group.key, trajectories=in_order, ready_at=now))
        return []

    def _end_failed(self, group: OpenGroup, reason: str) -> list[Effect]:
        self._end(group.key.ordinal, "failed")
        self._num_failed_groups += 1
        failed, ended = self._num_failed_groups, self._num_ended_groups
        if not grader_is_broken(num_failed_groups=failed, num_ended_groups=ended):
            return []
        message = f"{failed} of {ended} groups got no verdict; the last one: {reason}"
        return [_tell(RunBroken(failure_class="reward", message=message))]

    def _new_ordinal(self, version: int) -> int | None:
        if any(evaluation.version == 0 for evaluation in self._dealer.evaluations):
            return None
        demand = DemandView(
            num_open=self._num_open,
            groups_per_step=self._plan.groups_per_step,
            steps_left=self._plan.steps - self._trained_version,
            trained_version=self._trained_version,
        )
        if not self._plan.schedule.may_start(demand, version=version):
            return None
        ordinal = self._ledger.first_open(self._next_ordinal)
        self._next_ordinal = ordinal + 1
        return ordinal

    # ── what the trainer asks for ─────────────────────────────────────────────────────────────────────────────────

    def _on_batch_wanted(self, message: BatchWanted) -> list[Effect]:
        effects = self._on_trained(message.step - 1)
        if self._batch is not None and self._batch.step == message.step:
            effects.append(Send(to=TRAINER, message=self._batch))
        elif message.step == self._trained_version + 1:
            self._wanted_step = message.step
        return effects

    def _on_training_ended(self, message: TrainingEnded) -> list[Effect]:
        if self._is_over:
            return []
        self._is_over = True
        effects = self._on_trained(message.version)
        self._dealer.evaluations.append(self._evaluation_of(message.version))
        return [*effects, _tell(EvaluationStarted(version=message.version))]

    def _on_trained(self, step: int) -> list[Effect]:
        """The batch in training has met its end. Steps are trained one after the other, so there is only one."""
        if self._batch is None or self._batch.step != step:
            return []
        for group in self._batch.groups:
            self._end(group.key.ordinal, "trained")
        self._batch = None
        self._trained_version = step
        if self._plan.evaluates(step) and step != self._plan.steps:
            self._dealer.evaluations.append(self._evaluation_of(step))
        return [_tell(LedgerReported(counts=self._counts()))]

    def _make_batch(self) -> list[Effect]:
        if self._wanted_step is None:
            return []
        self._drop_stale()
        views = [ReadyGroupView(version=group.version, ready_at=group.ready_at) for group in self._ready]
        chosen = oldest_first(views, num_groups=self._plan.groups_per_step)
        if chosen is None:
            return []
        groups = tuple(self._ready[position] for position in chosen)
        self._ready = [group for position, group in enumerate(self._ready) if position not in set(chosen)]
        progress = self._ledger.progress_if_trained(
            [group.key.ordinal for group in groups], num_samples=len(groups) * self._plan.group_size
        )
        buffer = BufferView(num_ready=len(self._ready), num_in_progress=len(self._dealer.training))
        self._batch = BatchReady(step=self._wanted_step, groups=groups, progress=progress, buffer=buffer)
        self._wanted_step = None
        return [Send(to=TRAINER, message=self._batch)]

    def _drop_stale(self) -> None:
        kept: list[CompleteGroup] = []
        for group in self._ready:
            if self._plan.schedule.may_train(version=group.version, trained_version=self._trained_version):
                kept.append(group)
            else:
                self._end(group.key.ordinal, "dropped_stale")
        self._ready = kept

    # ── evaluations and ends ──────────────────────────────────────────────────────────────────────────────────────

    def _evaluation_of(self, version: int) -> Evaluation:
        return Evaluation(version=version, num_prompts=self._plan.evaluation_prompts)

    def _finish_evaluations(self) -> list[Effect]:
        effects: list[Effect] = []
        for evaluation in [evaluation for evaluation in self._dealer.evaluations if evaluation.is_finished]:
            self._dealer.evaluations.remove(evaluation)
            effects += [_tell(report) for report in evaluation.reports()]
            effects.append(Send(to=RELAY, message=VersionReleased(version=evaluation.version)))
            if self._is_over and not self._dealer.evaluations:
                effects += [_tell(LedgerReported(counts=self._counts())), _tell(PartFinished(part="data"))]
        return effects

    def _end(self, ordinal: int, end: End) -> None:
        self._num_ended_groups += 1
        self._ledger.end(ordinal, end, num_samples=self._plan.group_size)

    def _counts(self) -> dict[str, int]:
        return self._ledger.counts(num_open=self._num_open * self._plan.group_size)

    @property
    def _num_open(self) -> int:
        in_training = len(self._batch.groups) if self._batch is not None else 0
        return len(self._dealer.training) + len(self._ready) + in_training


def _tell(report: ToDriver) -> Send:
    return Send(to=DRIVER, message=report)
