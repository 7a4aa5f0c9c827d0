"""Data: hands out prompts, collects trajectories, and makes batches of complete groups.

    prompt pool ──▶ groups in progress, by replica ──▶ experience buffer ──▶ the batch in training ──▶ ledger

Invariants:
- every sample of every prompt ends exactly once: trained, filtered, dropped_stale or failed;
- a group reaches the trainer when all of its samples have ended; step S always gets the same batch, however often the
  trainer requests it;
- every acknowledgement, and each step's batch, survives a crash of this process (`commit`, `journal`);
- time in which this process did not run (frozen, busy) times out no sample;
- the schedule bounds the open groups, so the buffer cannot grow without end;
- a prompt that was in hand when replicas failed twice is excluded: it ends as failed, by the user's code;
- no evaluation holds up training: a place that no waiting evaluation prompt takes goes to training prompts.
"""

# Over budget: every message to data is dispatched here; the decisions are elsewhere (state, assignment, commit).

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.environments.port import Blame
from engine.pipeline.data.accounts import Owner
from engine.pipeline.data.assignment import Assignment
from engine.pipeline.data.commit import Commit
from engine.pipeline.data.evaluation import AnswerCounter
from engine.pipeline.data.prompts import PromptPool
from engine.pipeline.data.releases import Releases
from engine.pipeline.data.resending import Resending
from engine.pipeline.data.state import DataState
from engine.pipeline.effects import Effect, Send
from engine.pipeline.journal import (
    BatchMade,
    CheckpointKept,
    DataSnapshot,
    EvaluationClosed,
    EvaluationLoosened,
    GroupGivenUp,
    GroupsDropped,
    Record,
    StepTrained,
    TrainerForked,
    TrainingClosed,
    TrajectoryTaken,
)
from engine.pipeline.messages.addresses import DRIVER, TRAINER, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_data import (
    BatchWanted,
    PauseRequested,
    Persisted,
    ProgressStreamed,
    RepackPlanned,
    ReplicaGone,
    ReplicaSynced,
    ResumedFrom,
    TrainingEnded,
)
from engine.pipeline.messages.to_driver import (
    EvaluationStarted,
    FaultReported,
    LedgerReported,
    PartFinished,
    RunBroken,
    SamplesEnded,
    ToDriver,
)
from engine.pipeline.messages.to_relay import RelaysPlaced
from engine.pipeline.messages.to_rollout import ProgressAcknowledged
from engine.pipeline.messages.to_trainer import BatchReady
from engine.pipeline.plan import CHECKS_PER_DEADLINE, MAX_OWNERS, Plan
from engine.pipeline.records import BufferView, DataProgress, Trajectory
from engine.policy.awake import AwakeTime
from engine.policy.lineage import BASE_WEIGHTS, Lineage, WeightsId
from engine.policy.recovery import grader_is_broken
from engine.policy.sampling import oldest_first
from engine.spec.causes import PlatformCause

# After a recovery data listens first: every replica syncs at least once in this time.
LISTEN_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The content of the log: the last snapshot, if there was one, and all records after it."""

    snapshot: DataSnapshot | None
    records: Sequence[Record]
    serial: int


class DataBrain:
    def __init__(
        self,
        plan: Plan,
        *,
        start_step: int = 0,
        progress: DataProgress | None = None,
        incarnation: int = 0,
        recovered: Recovered | None = None,
    ) -> None:
        self._plan, self._awake = plan, AwakeTime()
        if recovered is None or recovered.snapshot is None:
            self._state = DataState(plan, start_step=start_step, progress=progress)
        else:
            self._state = DataState.restored(plan, recovered.snapshot)
        for record in () if recovered is None else recovered.records:
            self._state.apply(record)
        self._state.ended.forget()  # whether they were reported is not logged
        self._commit = Commit(self._state.snapshot, last_serial=0 if recovered is None else recovered.serial)
        self._assignment = Assignment(self._state, incarnation=incarnation)
        self._wanted_step: int | None = None
        self._resending = Resending()
        self._judged_by: tuple[int, Lineage] | None = None
        self._num_judged = 0
        self._listens = recovered is not None
        self._listens_until: float | None = None
        self._is_pausing = False
        self._prompts = PromptPool(self._state)
        self._counter = AnswerCounter()
        self._has_finished = False
        self._overdue_at = 0.0
        self._releases = Releases(num_relays=plan.num_relays)
        self._to_resend: list[Effect] = []
        if recovered is not None:  # decided but perhaps not sent; a duplicate is harmless
            self._to_resend = [_report(report) for report in self._state.reports]

    def handle(self, message: Message, now: float) -> list[Effect]:
        now = self._awake.at(now)
        if isinstance(message, Persisted):
            return self._commit.persisted(message.serial)
        if isinstance(message, ProgressStreamed):  # most of data's messages, and none leads to a grant
            return self._commit.after([self._on_streamed(message)])
        effects, self._to_resend = self._to_resend, []
        match message:
            case ReplicaSynced():
                effects += self._on_synced(message, now)
            case ReplicaGone():
                effects += self._on_gone(message)
            case RepackPlanned():
                self._assignment.moves.plan(message.moves, now)
            case BatchWanted():
                effects += self._on_batch_wanted(message, now)
            case PauseRequested():
                self._is_pausing = True
            case TrainingEnded():
                effects += self._on_training_ended(message, now)
            case RelaysPlaced():
                self._releases.relays = message.relays
            case Tick():
                effects += self._give_up_overdue(now)
                effects += self._releases.on_tick(now)
            case _:
                raise TypeError(f"data does not take {type(message).__name__}")
        effects += self._count_answers(now)
        effects += self._finish_evaluations()
        effects += self._make_batch(now)
        effects += self._grant_work(now)
        return self._commit.after(effects)

    @property
    def state(self) -> DataState:
        return self._state

    @property
    def num_moved(self) -> int:
        """Samples that changed their replica by a repack."""
        return self._assignment.moves.num_moved

    @property
    def progress(self) -> DataProgress:
        """Data's current progress: the prompts that have ended."""
        return self._state.ledger.progress()

    def _record(self, record: Record) -> None:
        self._state.apply(record)
        self._commit.record(record)
        self._prompts.replace_lost()

    # ── from replicas ─────────────────────────────────────────────────────────────────────────────────────────────

    def _on_synced(self, message: ReplicaSynced, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for trajectory in message.finished:
            effects += self._take(trajectory, (message.replica, message.incarnation))
        self._assignment.receive(message, now)
        if message.missing is not None:
            self._loosen(message.missing)
        return effects

    def _on_streamed(self, message: ProgressStreamed) -> Send:
        lacking = self._assignment.partials.receive(message, self._state.training)
        answer = ProgressAcknowledged(incarnation=message.incarnation, serial=message.serial, lacking=lacking)
        return Send(to=rollout_address(message.replica), message=answer)

    def _take(self, trajectory: Trajectory, reporter: Owner) -> list[Effect]:
        if not self._state.is_wanted(trajectory):
            return []
        trajectory = self._assignment.partials.join_routes(trajectory, self._state.training, reporter)
        num_failed, failure = self._state.failures.num_groups, trajectory.failure
        self._record(TrajectoryTaken(trajectory=trajectory))
        if failure is None or self._state.failures.num_groups == num_failed:
            return []
        return self._judge_grader(failure.reason, failure.blame)

    def _judge_grader(self, reason: str, blame: Blame) -> list[Effect]:
        failed, ended = self._state.failures.num_groups, self._state.num_ended_groups
        if not grader_is_broken(num_failed_groups=failed, num_ended_groups=ended):
            return []
        message = f"{failed} of {ended} groups could not be graded; the last error: {reason}"
        cause = PlatformCause.NO_SANDBOX if blame == "infrastructure" else None
        return [_report(RunBroken(failure_class=blame, message=message, cause=cause))]

    def _on_gone(self, message: ReplicaGone) -> list[Effect]:
        owner = (message.replica, message.incarnation)
        excluded = self._assignment.failed_with(owner) if message.has_failed else []
        self._assignment.lose(owner)
        effects: list[Effect] = []
        for key in excluded:
            reason = f"{MAX_OWNERS} replicas failed with the prompt of {key} in hand, before a token of an answer"
            self._record(GroupGivenUp(key=key, reason=reason))
            effects.append(_report(FaultReported(component="data", message=reason, action="the prompt is excluded")))
            effects += self._judge_grader(reason, "user_code")
        return effects

    def _loosen(self, missing: WeightsId) -> None:
        for evaluation in self._state.evaluations:
            if evaluation.weights == missing and not evaluation.any_version:
                self._record(EvaluationLoosened(version=missing.version))

    def _give_up_overdue(self, now: float) -> list[Effect]:
        """A hung sample must not block its group, and with it the step, forever."""
        deadline_s = self._plan.sample_deadline_s
        if now - self._overdue_at < deadline_s / CHECKS_PER_DEADLINE:
            return []
        self._overdue_at = now
        effects: list[Effect] = []
        for book, group in self._assignment.owned():
            group.note_growth(now)
            if now - group.moved_at < deadline_s or group.key not in book:
                continue
            waited = f"{len(group.missing)} samples of {group.key} made no progress for {deadline_s:.0f} s"
            if group.num_overdue + 1 < MAX_OWNERS:
                self._assignment.begin_elsewhere(book, group)
                effects.append(
                    _report(FaultReported(component="data", message=waited, action="restarted on another replica"))
                )
                continue
            self._record(GroupGivenUp(key=group.key, reason=waited))
            effects.append(_report(FaultReported(component="data", message=waited, action="the samples were dropped")))
            effects += self._judge_grader(waited, "reward")
        return effects

    # ── from the trainer ──────────────────────────────────────────────────────────────────────────────────────────

    def _on_batch_wanted(self, message: BatchWanted, now: float) -> list[Effect]:
        if message.epoch < self._state.lineage.epoch:
            return []
        effects = self._on_trained(message.step - 1, now)
        effects += self._follow(message.epoch, message.resumed)
        self._note_checkpoint(message.checkpointed)
        if self._state.batch is not None and self._state.batch.step == message.step:
            if self._resending.is_due(message.epoch, message.step, now):
                effects.append(self._send_batch(now))
        elif message.step == self._state.trained_version + 1:
            self._wanted_step = message.step
        return effects

    def _on_training_ended(self, message: TrainingEnded, now: float) -> list[Effect]:
        version = message.weights.version
        if message.weights.epoch < self._state.lineage.epoch:
            return []
        effects = self._on_trained(version, now)
        effects += self._follow(message.weights.epoch, message.resumed)
        self._note_checkpoint(message.checkpointed)
        if self._state.is_over or version != self._state.trained_version:
            return effects
        self._record(TrainingClosed(version=version))
        return [*effects, _report(EvaluationStarted(version=version))]

    def _note_checkpoint(self, step: int) -> None:
        if self._state.checkpointed < step <= self._state.trained_version:
            self._record(CheckpointKept(step=step))

    def _on_trained(self, step: int, now: float) -> list[Effect]:
        """Ends the batch in training. Steps are trained one at a time, so there is only one."""
        if self._state.batch is None or self._state.batch.step != step:
            return []
        self._record(StepTrained(step=step))
        ended = self._state.ended.take(now)
        samples = [_report(SamplesEnded(step=step, to_read=ended))] if ended else []
        return [self._report_ledger(), *samples]

    def _report_ledger(self) -> Send:
        return _report(LedgerReported(counts=self._state.counts(), failures=self._state.failures))

    def _follow(self, epoch: int, resumed: ResumedFrom | None) -> list[Effect]:
        """On a new incarnation of the trainer: undoes the steps that its predecessor trained after this checkpoint."""
        if epoch <= self._state.lineage.epoch or resumed is None:
            return []
        before = self._state.counts()["trained"]
        pinned = self._weights_evaluated() | ({BASE_WEIGHTS} if resumed.progress.base_is_due else set())
        self._record(TrainerForked(epoch=epoch, step=resumed.step, progress=resumed.progress))
        self._wanted_step, self._has_finished = None, False
        self._prompts.begin_anew()
        self._assignment.fork()
        num_undone = before - self._state.counts()["trained"]
        fault = FaultReported(
            component="trainer",
            message=f"a new trainer resumed from the checkpoint of step {resumed.step}",
            action=f"{num_undone} samples that were trained after it are trained again",
        )
        unneeded = sorted(pinned - self._weights_evaluated())
        released = [effect for weights in unneeded for effect in self._releases.release(weights)]
        return [_report(fault), self._report_ledger(), *released]

    def _weights_evaluated(self) -> set[WeightsId]:
        return {evaluation.weights for evaluation in self._state.evaluations}

    def _make_batch(self, now: float) -> list[Effect]:
        if self._wanted_step is None:
            return []
        state = self._state
        self._drop_stale_groups()
        chosen = oldest_first(len(state.ready), num_groups=self._plan.groups_per_step)
        if chosen is None:
            return []
        ordinals = tuple(sorted(state.ready[position].key.ordinal for position in chosen))
        self._record(BatchMade(step=self._wanted_step, ordinals=ordinals))
        self._wanted_step = self._judged_by = None
        return [self._send_batch(now)]

    def _drop_stale_groups(self) -> None:
        """Checks only new ready groups while the trained version is unchanged: groups leave `ready` only here and in a
        batch."""
        state = self._state
        by = (state.trained_version, state.lineage)
        fresh = state.ready[self._num_judged :] if self._judged_by == by else state.ready
        stale = [group.key.ordinal for group in fresh if not all(map(state.may_train, group.trajectories))]
        if stale:
            self._record(GroupsDropped(ordinals=tuple(stale)))
        self._judged_by, self._num_judged = by, len(state.ready)

    def _send_batch(self, now: float) -> Effect:
        state = self._state
        assert state.batch is not None
        self._resending.note_sent(state.lineage.epoch, state.batch.step, now)
        buffer = BufferView(
            num_ready=len(state.ready),
            num_in_progress=len(state.training),
            num_tokens_saved=self._assignment.partials.num_tokens_saved,
            num_tokens_lost=self._assignment.partials.num_tokens_lost,
            num_moved=self._assignment.moves.num_moved,
        )
        batch = BatchReady(
            step=state.batch.step,
            groups=state.batch.groups,
            progress=state.batch.progress,
            buffer=buffer,
            epoch=state.lineage.epoch,
            lineage=state.lineage,
        )
        return Send(to=TRAINER, message=batch)

    # ── grants and ends ───────────────────────────────────────────────────────────────────────────────────────────

    def _grant_work(self, now: float) -> list[Send]:
        if self._listens and self._listens_until is None:
            self._listens_until = now + LISTEN_S
        if self._listens_until is not None and now >= self._listens_until:
            self._listens, self._listens_until = False, None
        is_pausing = self._is_pausing and not self._state.is_over  # after the last step the run ends instead
        return self._assignment.assign(now, None if self._listens or is_pausing else self._prompts)

    def _count_answers(self, now: float) -> list[Effect]:
        """Only for a run that trains nothing; other runs show progress by their steps."""
        if not self._plan.only_evaluates:
            return []
        counted = [self._counter.count(evaluation, now) for evaluation in self._state.evaluations]
        return [_report(report) for report in counted if report is not None]

    def _finish_evaluations(self) -> list[Effect]:
        effects: list[Effect] = []
        for evaluation in [evaluation for evaluation in self._state.evaluations if evaluation.is_finished]:
            weights = evaluation.weights
            num_before = len(self._state.reports)
            self._record(EvaluationClosed(version=weights.version))
            effects += [_report(report) for report in self._state.reports[num_before:]]
            effects += self._releases.release(weights)
        return [*effects, *self._finish()]

    def _finish(self) -> list[Effect]:
        """Reports the end once all evaluations are done and the last checkpoint is written: no step can be undone."""
        state = self._state
        is_kept = state.checkpointed >= self._plan.steps
        if self._has_finished or not state.is_over or state.evaluations or not is_kept:
            return []
        self._has_finished = True
        finished = PartFinished(part="data", epoch=state.lineage.epoch)
        return [self._report_ledger(), _report(finished)]


def _report(report: ToDriver) -> Send:
    return Send(to=DRIVER, message=report)
