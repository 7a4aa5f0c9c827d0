"""Effects of facts on their job.

Invariants:
- everything happens in the caller's transaction, under the job's lock;
- each fact that adds something to a page takes a cursor of its own, so a page of news never ends inside a fact;
- a fact never changes a job's target: a stopping job ends in its target state.
"""

from datetime import UTC, datetime, timedelta
from functools import singledispatchmethod
from typing import Any

from backend.checkpoints.evaluation.evaluating import record_evaluation
from backend.checkpoints.services import doubt_resume_point, record_checkpoint
from backend.jobs.attempts.ending import end_as_reported
from backend.jobs.control_requests import acknowledge_request
from backend.jobs.lifecycle import change_state, next_cursor, record_event
from backend.jobs.models import Job, JobAttempt, JobState
from backend.pools.services import release_elastic
from backend.telemetry.intake.passed_over import note_passed_over
from backend.telemetry.ledger import store_ledger
from backend.telemetry.logs.batches import store_lines
from backend.telemetry.replicas.activity import store_activity
from backend.telemetry.series.points import NewPoint, store_points
from backend.telemetry.trajectories.storing import store_trajectories
from engine.spec.facts import (
    CheckpointSaved,
    DriverStarted,
    Evaluated,
    Fact,
    FactBody,
    FaultDetected,
    LogLines,
    PhaseChanged,
    PipelineReady,
    PromptsAnswered,
    ReplicasObserved,
    ReplicasResized,
    RequestAcknowledged,
    RunFinished,
    StepTrained,
    TrajectoriesSampled,
    UnknownFact,
)
from engine.spec.for_tenants import for_tenants

OLDEST_FACT = timedelta(days=31)  # a spool may arrive late
NEWEST_FACT = timedelta(days=1)
LONGEST_MESSAGE = 2_000


class FactEffects:
    """Applies a batch. Its points are collected and stored in one statement at the end."""

    def __init__(self, job: Job, attempt: JobAttempt, *, now: datetime) -> None:
        self._job, self._attempt, self._now = job, attempt, now
        self._actor = f"engine:{attempt.n}"
        self._points: list[NewPoint] = []
        self._steps: list[int] = []
        """Trained but not yet written to the job: a spool catching up has hundreds in a row."""
        self._answered: int | None = None
        """Number of held-out prompts answered, not yet written either."""
        self._ledger: tuple[dict[str, int], datetime] | None = None
        """The last ledger reported, not yet written either."""

    def apply(self, fact: Fact) -> None:
        if not isinstance(fact.body, StepTrained | PromptsAnswered):
            self._settle()
        note_passed_over(fact, job=self._job.pk, attempt=self._attempt.n)
        self._apply(fact.body, _plausible(fact.at, self._now))

    def store(self) -> None:
        self._settle()
        if store_points(self._job, self._attempt.n, self._points):
            return
        if not self._job.events.filter(type="series_limit_reached").exists():
            message = "This job reports too many metric names. Some series were dropped."
            self._event("series_limit_reached", message=message)

    @singledispatchmethod
    def _apply(self, body: FactBody, at: datetime) -> None:
        raise AssertionError(f"no effect defined for {type(body).__name__}")

    @_apply.register
    def _(self, body: DriverStarted, at: datetime) -> None:
        self._event("driver_started", data={"host": body.host})

    @_apply.register
    def _(self, body: PhaseChanged, at: datetime) -> None:
        self._change(phase=body.phase)
        next_cursor(self._job)

    @_apply.register
    def _(self, body: PipelineReady, at: datetime) -> None:
        data = body.model_dump(exclude={"type"})
        if self._job.state in {JobState.STARTING, JobState.RECOVERING}:
            change_state(
                self._job, JobState.RUNNING, actor=self._actor, now=self._now, phase=self._job.phase, data=data
            )
        else:
            self._event("pipeline_ready", data=data)

    @_apply.register
    def _(self, body: StepTrained, at: datetime) -> None:
        self._steps.append(body.step)
        if body.ledger:
            self._ledger = body.ledger, at
        self._measure(body.step, at, self._job.cursor + len(self._steps), body.metrics)

    @_apply.register
    def _(self, body: PromptsAnswered, at: datetime) -> None:
        self._answered = body.num_answered

    def _settle(self) -> None:
        """Writes steps at once, with one cursor each; of counts and ledgers only the last."""
        if self._steps:
            self._change(step=self._steps[-1])
            next_cursor(self._job, count=len(self._steps))
            self._steps = []
        if self._ledger is not None:
            counts, at = self._ledger
            store_ledger(self._job, self._attempt.n, counts, at=at)
            self._ledger = None
        if self._answered is not None:
            self._change(answered=self._answered)
            next_cursor(self._job)
            self._answered = None

    @_apply.register
    def _(self, body: Evaluated, at: datetime) -> None:
        event = self._event("evaluated", data=body.model_dump(exclude={"type"}))
        metrics = {
            "evaluation/reward": body.reward_mean,
            "evaluation/reward_std": body.reward_std,
            "evaluation/reward_error": body.reward_error,
            "evaluation/length": body.length_mean,
        }
        if body.pass_rate is not None:
            metrics |= {"evaluation/pass_rate": body.pass_rate, "evaluation/pass_error": body.pass_error}
        self._measure(body.version, at, event, metrics)
        record_evaluation(self._job, body, now=self._now)

    @_apply.register
    def _(self, body: TrajectoriesSampled, at: datetime) -> None:
        store_trajectories(self._job, self._attempt.n, body, cursor=next_cursor(self._job), now=self._now)

    @_apply.register
    def _(self, body: CheckpointSaved, at: datetime) -> None:
        record_checkpoint(self._job, self._attempt.n, body, now=self._now)
        self._event("checkpoint_saved", data={"step": body.step, "version": body.version, "num_bytes": body.num_bytes})

    @_apply.register
    def _(self, body: FaultDetected, at: datetime) -> None:
        data = {"component": body.component, "action": for_tenants(body.action[:LONGEST_MESSAGE])}
        self._event("fault_detected", message=body.message[:LONGEST_MESSAGE], data=data)

    @_apply.register
    def _(self, body: ReplicasObserved, at: datetime) -> None:
        store_activity(self._job, self._attempt.n, body, at=at)

    @_apply.register
    def _(self, body: LogLines, at: datetime) -> None:
        store_lines(self._job, self._attempt.n, body, cursor=next_cursor(self._job), now=self._now)

    @_apply.register
    def _(self, body: RequestAcknowledged, at: datetime) -> None:
        if acknowledge_request(self._job, body.request_id, now=self._now):
            self._event("request_acknowledged", data={"request": body.request_id})

    @_apply.register
    def _(self, body: ReplicasResized, at: datetime) -> None:
        self._event("replicas_resized", data={"replicas": body.replicas})
        release_elastic(self._job.pk, replicas=body.replicas, now=self._now)

    @_apply.register
    def _(self, body: RunFinished, at: datetime) -> None:
        message = body.message[:LONGEST_MESSAGE]
        store_ledger(self._job, self._attempt.n, body.ledger, at=at, is_final=True)
        data = {"ledger": body.ledger} | ({"cause": body.cause.value} if body.cause else {})
        self._event("run_finished", reason=body.outcome, message=message, data=data)
        failure_class = (body.failure_class or "platform") if body.outcome == "failed" else ""
        if failure_class == "infrastructure" and body.cause is None:
            failure_class = "platform"  # only named causes are credited
        if failure_class == "data" and doubt_resume_point(self._attempt, now=self._now):
            failure_class = "infrastructure"  # its checkpoint cannot be opened; the next attempt uses the previous one
        end_as_reported(
            self._job,
            self._attempt,
            outcome=body.outcome,
            failure_class=failure_class,
            message=message,
            now=self._now,
        )

    @_apply.register
    def _(self, body: UnknownFact, at: datetime) -> None:
        """No effect; counted with all that is passed over."""

    def _measure(self, step: int, at: datetime, cursor: int, metrics: dict[str, float]) -> None:
        self._points += [
            NewPoint(name=name, step=step, at=at, value=value, cursor=cursor) for name, value in metrics.items()
        ]

    def _event(self, type: str, *, reason: str = "", message: str = "", data: dict[str, Any] | None = None) -> int:
        event = record_event(
            self._job, type, actor=self._actor, now=self._now, reason=reason, message=message, data=data
        )
        return event.cursor

    def _change(self, **changes: Any) -> None:
        Job.objects.filter(pk=self._job.pk).update(**changes)
        for name, value in changes.items():
            setattr(self._job, name, value)


def _plausible(at: datetime, now: datetime) -> datetime:
    """Trusts the engine's clock within limits; a time without a zone is UTC."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at if now - OLDEST_FACT < at < now + NEWEST_FACT else now
