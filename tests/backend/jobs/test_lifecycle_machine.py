"""Everything that can be done to jobs, in any order, over the real models on Postgres, against a small model.

Hypothesis draws the order and makes a failing one short. After each step the checks that the database makes when a
transaction ends are made (I1, I4), and the invariants are looked at; at the end faults stop and every job must end.

The model knows of each job only what can never be taken back: its spec, whether it was cancelled, how it ended.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from backend.errors import InvalidState
from backend.jobs.attempts.ending import state_after_pause
from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.attempts.launching import launch_attempt
from backend.jobs.control.cancelling import cancel_job, kill_job
from backend.jobs.control.pausing import begin_pause, pause_job, resume_job
from backend.jobs.lifecycle import LEGAL_MOVES
from backend.jobs.models import HOLDING_STATES, TERMINAL_STATES, Job, JobAttempt, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from backend.pools.clusters.dashboard import LauncherError
from backend.pools.models import Reservation, ResourcePool
from backend.reconcile.round import reconcile
from backend.telemetry.intake.ingest import StaleFence, ingest_facts, note_heartbeat
from engine.spec.control import FactBatch, Heartbeat
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.backend.conftest import NOW, MakeJob
from tests.backend.fake_ray import FakeRay

PICK = st.integers(0, 1_000)
RUNS = {JobState.STARTING, JobState.RUNNING, JobState.RECOVERING}
FAILURES = st.sampled_from(["infrastructure", "platform", "capacity", "user_code", "config"])


@dataclass(slots=True)
class Known:
    spec: dict[str, Any]
    is_cancelled: bool = False
    end: dict[str, Any] | None = None


class Lifecycle(RuleBasedStateMachine):
    pool: ResourcePool
    make_job: MakeJob

    def __init__(self) -> None:
        super().__init__()
        self.undo = transaction.atomic()
        self.undo.__enter__()
        self.now, self.ray = NOW, FakeRay()
        self.known: dict[str, Known] = {}

    def teardown(self) -> None:
        try:
            self.all_end_when_faults_stop()
        finally:
            transaction.set_rollback(True)
            self.undo.__exit__(None, None, None)

    # ── what users do ────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.known) < 6)
    @rule(devices=st.integers(2, 5), preemptible=st.booleans())
    def submit(self, devices: int, preemptible: bool) -> None:
        self.note(self.make_job(devices=devices, at=self.now, placement={"preemptible": preemptible}))

    @rule(which=PICK)
    def cancel(self, which: int) -> None:
        job = self.pick(which)
        if job is None:
            return
        may = job.state not in {JobState.SUCCEEDED, JobState.FAILED}
        changed = self.call_service(lambda: cancel_job(job.pk, actor="user:1", now=self.now), may=may)
        assert changed in {None, job.state not in {JobState.STOPPING, JobState.CANCELLED}}
        if changed:
            self.known[job.pk].is_cancelled = True

    @rule(which=PICK)
    def pause(self, which: int) -> None:
        job = self.pick(which)
        if job is None:
            return
        may = job.state in RUNS | {JobState.PAUSING, JobState.PAUSED}
        self.call_service(lambda: pause_job(job.pk, actor="user:1", now=self.now), may=may)
        if may:  # idempotent
            assert self.call_service(lambda: pause_job(job.pk, actor="user:1", now=self.now), may=True) is False

    @rule(which=PICK)
    def resume(self, which: int) -> None:
        job = self.pick(which)
        if job is not None:
            may = job.state in RUNS | {JobState.PAUSING, JobState.PAUSED, JobState.QUEUED}
            stays_paused = job.state == JobState.PAUSING and state_after_pause(job) == JobState.PAUSED
            changed = self.call_service(lambda: resume_job(job.pk, actor="user:1", now=self.now), may=may)
            assert changed in {None, stays_paused or job.state == JobState.PAUSED}

    @rule(which=PICK)
    def preempt(self, which: int) -> None:
        job = self.pick(which)
        if job is not None and job.state in RUNS:
            begin_pause(job, reason="preempted", message="", actor="scheduler", now=self.now)

    @precondition(lambda self: len(self.known) < 6)
    @rule(which=PICK)
    def retry(self, which: int) -> None:
        job = self.pick(which)
        if job is None:
            return
        try:
            child = retry_job(
                job, start_from=None, changes={}, by=Submitter(user=job.created_by, key=None), now=self.now
            )
        except InvalidState:
            assert not job.is_terminal
        else:
            assert job.is_terminal and child.parent_id == job.pk
            self.known.pop(child.pk, None)
            cancel_job(child.pk, actor="user:1", now=self.now)  # it is validating; otherwise a job like any other
            self.note(Job.objects.get(pk=child.pk), is_cancelled=True)

    @rule(which=PICK)
    def kill(self, which: int) -> None:
        job = self.pick(which)
        if job is not None and which % 5 == 0:
            kill_job(job.pk, actor="user:1", now=self.now)
            assert Job.objects.get(pk=job.pk).is_terminal

    # ── what the platform and the engine do ───────────────────────────────────────────────────────────────────────

    @rule()
    def schedule(self) -> None:
        schedule_pool(self.pool.pk, now=self.now)

    @rule(which=PICK)
    def launch(self, which: int) -> None:
        job = self.pick(which)
        if job is not None:
            self.put_on_the_engine(job)

    @rule(which=PICK, step=st.integers(1, 50))
    def report_progress(self, which: int, step: int) -> None:
        bodies: list[dict[str, Any]] = [{"type": "pipeline_ready", "num_replicas": 1, "num_parameters": 1}]
        bodies.append({"type": "step_trained", "step": step, "metrics": {}})
        saved = {"step": step, "version": step, "manifest_sha256": "a" * 64, "num_bytes": 1}
        attempt = self.attempt(which)
        if which % 2 and attempt is not None:
            bodies.append({"type": "checkpoint_saved", "uri": checkpoint_address(attempt, step), **saved})
        self.say(which, *bodies)

    @rule(which=PICK)
    def report_success(self, which: int) -> None:
        self.say(which, {"type": "run_finished", "outcome": "succeeded"})

    @rule(which=PICK, failure_class=FAILURES)
    def report_failure(self, which: int, failure_class: str) -> None:
        cause = "node_lost" if failure_class == "infrastructure" else None
        body = {"type": "run_finished", "outcome": "failed", "failure_class": failure_class, "cause": cause}
        self.say(which, body)

    @rule(which=PICK)
    def obey(self, which: int) -> None:
        """The driver acts on its requests."""
        attempt = self.attempt(which)
        if attempt is None or attempt.submitted_at is None:
            return
        beat = Heartbeat(attempt=attempt.n, fence=attempt.fence, step=0)
        kinds = {request.kind for request in note_heartbeat(attempt, beat, now=self.now)}
        outcome = "cancelled" if "cancel" in kinds else "paused" if "pause" in kinds else None
        if outcome is not None:
            self.say_as(attempt, {"type": "run_finished", "outcome": outcome})

    @rule(which=PICK)
    def a_ghost_speaks(self, which: int) -> None:
        """Facts of an ended attempt have no effect."""
        ghosts = list(JobAttempt.objects.filter(ended_at__isnull=False).order_by("pk"))
        if not ghosts:
            return
        ghost = ghosts[which % len(ghosts)]
        before = Job.objects.filter(pk=ghost.job_id).values().get()
        with pytest.raises(StaleFence):
            self.say_as(ghost, {"type": "run_finished", "outcome": "succeeded"})
        assert Job.objects.filter(pk=ghost.job_id).values().get() == before

    @rule(which=PICK, status=st.sampled_from([SubmissionStatus.FAILED, SubmissionStatus.MISSING]))
    def die(self, which: int, status: SubmissionStatus) -> None:
        attempt = self.attempt(which)
        if attempt is not None:
            self.ray.known[attempt.submission_id] = status

    @rule(away=st.booleans())
    def ray_goes_away(self, away: bool) -> None:
        self.ray.away = away

    @rule(seconds=st.sampled_from([1, 5, 25, 130, 500, 1_000]))
    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        reconcile(self.ray, lambda: self.now, lambda: True)

    # ── what always holds ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_database_would_commit(self) -> None:
        with connection.cursor() as db:
            db.execute("SET CONSTRAINTS ALL IMMEDIATE")
            db.execute("SET CONSTRAINTS ALL DEFERRED")

    @invariant()
    def devices_are_held_by_those_who_may_and_never_oversold(self) -> None:
        live = Reservation.objects.filter(released_at__isnull=True)
        assert (live.aggregate(held=Sum("devices"))["held"] or 0) <= self.pool.capacity
        holding = set(Job.objects.filter(state__in=HOLDING_STATES).values_list("pk", flat=True))
        assert set(live.values_list("job_id", flat=True)) == holding
        alive = JobAttempt.objects.filter(ended_at__isnull=True).values_list("job_id", flat=True)
        assert len(alive) == len(set(alive)) and set(alive) <= holding

    @invariant()
    def the_log_tells_each_jobs_life(self) -> None:
        for job in Job.objects.filter(pk__in=self.known):
            events = list(job.events.order_by("seq"))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            moves = [event for event in events if event.to_state]
            assert moves[-1].to_state == job.state
            for before, after in pairwise(moves):
                assert after.from_state == before.to_state and after.to_state in LEGAL_MOVES[before.to_state]
                if after.to_state == JobState.PAUSED or (before.to_state, after.to_state) == ("pausing", "queued"):
                    assert after.data["lost_steps"] >= 0

    @invariant()
    def what_cannot_be_taken_back_is_not(self) -> None:
        for columns in Job.objects.filter(pk__in=self.known).values():
            known = self.known[columns["id"]]
            assert columns["spec"] == known.spec
            row: dict[str, Any] = {name: value for name, value in columns.items() if name != "cursor"}
            if known.is_cancelled:
                assert row["state"] in {JobState.STOPPING, JobState.CANCELLED}
            if known.end is not None:
                assert row == known.end
            elif row["state"] in TERMINAL_STATES:
                known.end = row

    # ── at the end ────────────────────────────────────────────────────────────────────────────────────────────────

    def all_end_when_faults_stop(self) -> None:
        self.ray.away = False
        for _ in range(60):
            if not Job.objects.filter(pk__in=self.known).exclude(state__in=TERMINAL_STATES).exists():
                for which in range(JobAttempt.objects.count()):
                    self.a_ghost_speaks(which)
                return
            self.now += timedelta(seconds=1_000)
            schedule_pool(self.pool.pk, now=self.now)
            for job in Job.objects.filter(pk__in=self.known).exclude(state__in=TERMINAL_STATES):
                if job.state == JobState.PAUSED:
                    resume_job(job.pk, actor="user:1", now=self.now)
                self.put_on_the_engine(job)
                attempt = job.attempts.filter(ended_at=None, submitted_at__isnull=False).first()
                is_alive = attempt is not None and self.ray.status(attempt.submission_id).is_live
                if attempt is not None and is_alive and job.state != JobState.PAUSED:
                    outcome = {"pausing": "paused", "stopping": "cancelled"}.get(job.state, "succeeded")
                    self.say_as(attempt, {"type": "run_finished", "outcome": outcome})
            reconcile(self.ray, lambda: self.now, lambda: True)
        left = Job.objects.filter(pk__in=self.known).exclude(state__in=TERMINAL_STATES)
        raise AssertionError(f"these never end: {list(left.values('state', 'reason', 'message', 'not_before'))}")

    # ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_on_the_engine(self, job: Job) -> None:
        try:
            launch_attempt(job.pk, self.ray)
        except LauncherError:
            assert self.ray.away
        # Launching reads the database's clock, which is months ahead of this machine's.
        JobAttempt.objects.filter(job=job, ended_at=None, submitted_at__gt=self.now).update(submitted_at=self.now)

    def note(self, job: Job, *, is_cancelled: bool = False) -> None:
        self.known[job.pk] = Known(spec=job.spec, is_cancelled=is_cancelled)

    def pick(self, which: int) -> Job | None:
        ids = sorted(self.known)
        return Job.objects.get(pk=ids[which % len(ids)]) if ids else None

    def attempt(self, which: int) -> JobAttempt | None:
        job = self.pick(which)
        return job.attempts.filter(ended_at__isnull=True).first() if job is not None else None

    def say(self, which: int, *bodies: dict[str, Any]) -> None:
        attempt = self.attempt(which)
        if attempt is not None and attempt.submitted_at is not None:
            self.say_as(attempt, *bodies)

    def say_as(self, attempt: JobAttempt, *bodies: dict[str, Any]) -> None:
        first = attempt.acked_seq + 1
        facts = [{"seq": first + index, "at": self.now, "body": body} for index, body in enumerate(bodies)]
        batch = FactBatch.model_validate({"attempt": attempt.n, "fence": attempt.fence, "facts": facts})
        ingest_facts(attempt, batch, now=self.now)

    def call_service(self, call: Callable[[], tuple[Job, bool]], *, may: bool) -> bool | None:
        """True if it changed anything; None if it was refused, as it had to be."""
        try:
            changed = call()[1]
        except InvalidState:
            assert not may
            return None
        assert may
        return changed


@pytest.mark.long
def test_no_order_of_events_breaks_an_invariant(pool: ResourcePool, make_job: MakeJob, now: datetime) -> None:
    class Machine(Lifecycle):
        pass

    Machine.pool, Machine.make_job = pool, staticmethod(make_job)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=12, stateful_step_count=35, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
