"""POST /internal/engine/facts and /heartbeat: each fact once, in order, from the live attempt only."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from backend.checkpoints.models import Checkpoint
from backend.checkpoints.selectors import newest_checkpoint
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.attempts.tokens import attempt_token
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import ControlRequest, Job, JobAttempt, JobEvent, JobState
from backend.pools.models import ResourcePool
from backend.telemetry.models import (
    LogBatch,
    MetricPoint,
    MetricSeries,
    ReplicaActivity,
    ReplicaMinute,
    SampleLedger,
    Trajectory,
    UnarchivedTrajectory,
)
from backend.telemetry.series.points import MOST_SERIES
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.racing import race

Body = dict[str, Any]
AT = "2026-11-21T08:00:00Z"


def step(n: int, **metrics: float) -> Body:
    return {"type": "step_trained", "step": n, "metrics": metrics or {"reward/mean": n / 10, "loss": 1.0}}


READY: Body = {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 167_000}
LINES: Body = {"type": "log_lines", "component": "rollout-0", "lines": [{"at": AT, "level": "info", "message": "up"}]}
SPAN = {"doing": "decode", "start_s": -2.0, "end_s": 0.0}
REPLICA: Body = {"replica": 0, "incarnation": 0, "version": 1, "kv_used": 0.5, "num_running": 1, "num_waiting": 0}
REPLICA |= {"num_with_environment": 0, "num_prefilled": 0, "num_decoded": 9, "spans": [SPAN]}
OBSERVED: Body = {"type": "replicas_observed", "replicas": [REPLICA]}
COUNTED: Body = step(2) | {"ledger": {"trained": 4, "open": 4}}
FINISHED: Body = {"type": "run_finished", "outcome": "succeeded", "ledger": {"trained": 8}}


def sample(**changes: Any) -> Body:
    row = {"prompt_ordinal": 3, "sample": 1, "version": 1, "staleness": 0, "num_tokens": 4, "reward": 1.0}
    return row | {"advantage": 0.5, "prompt": "1 2 =", "response": "1 3", "remark": "right"} | changes


def trajectories(n: int, *samples: Body) -> Body:
    return {"type": "trajectories_sampled", "step": n, "trajectories": list(samples) or [sample()]}


class Driver:
    """Sends what a driver sends, with its attempt's token."""

    def __init__(self, attempt: JobAttempt) -> None:
        self.attempt, self.n, self.fence, self.sent = attempt, attempt.n, attempt.fence, 0
        self.token = attempt_token(attempt.job_id, attempt.n, attempt.fence)
        self.client = Client(raise_request_exception=False)

    def checkpoint(self, n: int) -> Body:
        saved = {"step": n, "version": n, "uri": checkpoint_address(self.attempt, n), "manifest_sha256": "a" * 64}
        return {"type": "checkpoint_saved", "num_bytes": 9} | saved

    def post(self, path: str, body: object, *, token: str | None = None) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return self.client.post(f"/internal/engine/{path}", content, content_type="application/json", headers=headers)

    def batch(self, first: int, bodies: Sequence[Body]) -> Body:
        facts = [{"seq": first + index, "at": AT, "body": body} for index, body in enumerate(bodies)]
        return {"attempt": self.n, "fence": self.fence, "facts": facts}

    def send(self, first: int, *bodies: Body) -> Any:
        return self.post("facts", self.batch(first, bodies))

    def say(self, *bodies: Body) -> Any:
        """Sends the next facts, which must be accepted."""
        answer = self.send(self.sent + 1, *bodies)
        assert answer.status_code == 200, answer.content
        self.sent += len(bodies)
        return answer

    def beat(self) -> Any:
        return self.post("heartbeat", {"attempt": self.n, "fence": self.fence, "step": 0})


@pytest.fixture
def driver(attempt: JobAttempt) -> Driver:
    return Driver(attempt)


def everything(job: Job) -> dict[str, Any]:
    """Everything that ingest may change."""
    job.refresh_from_db()
    return {
        "job": {name: getattr(job, name) for name in ("state", "phase", "step", "cursor", "version", "message")},
        "attempts": list(job.attempts.order_by("n").values("n", "acked_seq", "ended_at", "outcome")),
        "events": list(JobEvent.objects.filter(job=job).order_by("seq").values()),
        "points": list(MetricPoint.objects.filter(series__job=job).order_by("pk").values()),
        "series": list(MetricSeries.objects.filter(job=job).order_by("id").values()),
        "trajectories": list(Trajectory.objects.filter(job=job).order_by("id").values()),
        "unarchived": list(UnarchivedTrajectory.objects.filter(job=job).order_by("pk").values()),
        "logs": list(LogBatch.objects.filter(job=job).order_by("id").values()),
        "activity": list(ReplicaActivity.objects.filter(job=job).order_by("id").values()),
        "ledger": list(SampleLedger.objects.filter(job=job).values()),
        "minutes": list(ReplicaMinute.objects.filter(job=job).order_by("replica", "minute").values()),
        "checkpoints": list(Checkpoint.objects.filter(job=job).order_by("id").values()),
    }


def series(job: Job, name: str) -> list[tuple[int, float]]:
    return list(
        MetricPoint.objects.filter(series__job=job, series__name=name).order_by("step").values_list("step", "value")
    )


class TestTheWayOfAJob:
    def test_run_from_start_to_end(self, driver: Driver, job: Job) -> None:
        driver.say({"type": "driver_started", "host": "node-1", "pid": 7})
        driver.say({"type": "phase_changed", "phase": "loading_weights"})
        job.refresh_from_db()
        assert (job.state, job.phase) == ("starting", "loading_weights")
        driver.say(READY, {"type": "phase_changed", "phase": "evaluating"})
        evaluation = {"num_prompts": 256, "reward_mean": 0.25, "reward_std": 0.4, "length_mean": 9.5}
        driver.say({"type": "evaluated", "version": 0} | evaluation)
        driver.say(step(1), trajectories(1), step(2), driver.checkpoint(2))
        job.refresh_from_db()
        assert (job.state, job.phase, job.step) == ("running", "evaluating", 2)
        assert job.started_at is not None
        assert series(job, "reward/mean") == [(1, 0.1), (2, 0.2)]
        assert series(job, "evaluation/reward") == [(0, 0.25)]
        assert series(job, "evaluation/length") == [(0, 9.5)]
        assert Trajectory.objects.get(job=job).response == "1 3"
        newest = newest_checkpoint(job)
        assert newest is not None and newest.step == 2
        assert driver.say(FINISHED).json()["acked"] == 10
        job.refresh_from_db()
        assert job.state == "succeeded" and job.finished_at is not None
        assert not job.reservations.filter(released_at=None).exists()
        assert job.attempts.get().outcome == "succeeded"
        types = list(job.events.order_by("seq").values_list("type", "to_state"))
        assert types[-3:] == [("run_finished", ""), ("state_changed", "stopping"), ("state_changed", "succeeded")]

    def test_cancel_is_fetched_acknowledged_and_ends_the_job(self, driver: Driver, job: Job, now: datetime) -> None:
        driver.say(READY)
        assert driver.beat().json() == {"requests": []}
        cancel_job(job.pk, actor="user:1", now=now)
        [request] = driver.beat().json()["requests"]
        assert request["kind"] == "cancel" and driver.beat().json()["requests"] == [request]
        driver.say({"type": "request_acknowledged", "request_id": request["id"]})
        assert driver.beat().json() == {"requests": []}
        driver.say(step(1), {"type": "run_finished", "outcome": "succeeded"})  # it was ending by itself
        job.refresh_from_db()
        assert job.state == "cancelled"

    def test_job_cancelled_before_ready_does_not_run(self, driver: Driver, job: Job, now: datetime) -> None:
        cancel_job(job.pk, actor="user:1", now=now)
        driver.say(READY, step(1), {"type": "run_finished", "outcome": "cancelled"})
        job.refresh_from_db()
        assert job.state == "cancelled" and job.started_at is None

    def test_failure_carries_its_class_and_message(self, driver: Driver, job: Job) -> None:
        driver.say({"type": "run_finished", "outcome": "failed", "failure_class": "config", "message": "no such model"})
        job.refresh_from_db()
        assert (job.state, job.failure_class, job.message) == ("failed", "config", "no such model")

    def test_infrastructure_failure_waits_for_another_attempt(self, driver: Driver, job: Job) -> None:
        driver.say(
            READY, {"type": "run_finished", "outcome": "failed", "failure_class": "infrastructure", "cause": "ray_lost"}
        )
        job.refresh_from_db()
        assert job.state == "recovering" and job.attempts.get().ended_at is not None
        assert job.reservations.filter(released_at=None).exists()

    def test_fault_is_recorded_and_changes_nothing_else(self, driver: Driver, job: Job) -> None:
        driver.say(READY, {"type": "fault_detected", "component": "rollout-1", "message": "gone", "action": "replaced"})
        event = job.events.get(type="fault_detected")
        assert (event.message, event.data) == ("gone", {"component": "rollout-1", "action": "replaced"})
        job.refresh_from_db()
        assert job.state == "running"

    def test_consecutive_steps_take_a_cursor_each_and_one_write(self, driver: Driver, job: Job) -> None:
        driver.say(READY, step(1), step(2), step(3), trajectories(3), step(4), OBSERVED, step(5))
        job.refresh_from_db()
        points = MetricPoint.objects.filter(series__job=job, series__name="loss").order_by("step")
        cursors = list(points.values_list("cursor", flat=True))
        first = cursors[0]
        assert cursors == [first, first + 1, first + 2, first + 4, first + 5]
        assert Trajectory.objects.get(job=job).cursor == first + 3
        assert (job.step, job.cursor) == (5, first + 5)


class TestOnce:
    def test_replay_changes_nothing(self, driver: Driver, job: Job) -> None:
        bodies = [READY, step(1), trajectories(1), driver.checkpoint(1), COUNTED, LINES, OBSERVED]
        driver.say(*bodies)
        before = everything(job)
        assert all(before.values())
        for _again in range(2):
            assert driver.send(1, *bodies).json()["acked"] == 7
        assert driver.send(3, *bodies[2:4]).json()["acked"] == 7
        assert everything(job) == before

    def test_overlapping_batch_adds_only_new_facts(self, driver: Driver, job: Job) -> None:
        driver.say(READY, step(1), step(2))
        assert driver.send(2, step(1, loss=99.0), step(2, loss=99.0), step(3, loss=3.0)).json()["acked"] == 4
        assert series(job, "loss") == [(1, 1.0), (2, 1.0), (3, 3.0)]

    def test_lost_acknowledgement_of_last_fact_is_repeated(self, driver: Driver, job: Job) -> None:
        driver.say(READY, FINISHED)
        before = everything(job)
        assert driver.send(1, READY, FINISHED).json()["acked"] == 2
        assert driver.send(2, FINISHED).json()["acked"] == 2
        assert everything(job) == before

    def test_gap_is_answered_with_the_seq_to_resume_from(self, driver: Driver, job: Job) -> None:
        driver.say(READY)
        before = everything(job)
        answer = driver.send(3, step(2))
        assert (answer.status_code, answer.json()["code"], answer.json()["acked"]) == (409, "gap", 1)
        assert answer["Content-Type"] == "application/problem+json"
        assert everything(job) == before

    @pytest.mark.parametrize("seqs", [[2, 4], [2, 2], [3, 2]])
    def test_unordered_batch_is_refused_as_a_whole(self, driver: Driver, job: Job, seqs: list[int]) -> None:
        driver.say(READY)
        before = everything(job)
        batch = driver.batch(2, [step(1), step(2)])
        for fact, seq in zip(batch["facts"], seqs, strict=True):
            fact["seq"] = seq
        answer = driver.post("facts", batch)
        assert (answer.status_code, answer.json()["code"]) == (422, "disorder")
        assert answer.json()["errors"][0]["pointer"] == "/facts/1/seq"
        assert everything(job) == before

    def test_facts_after_the_last_one_are_refused(self, driver: Driver, job: Job) -> None:
        assert driver.send(1, FINISHED, step(1)).status_code == 422
        assert driver.say(FINISHED)
        answer = driver.send(2, step(1))
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_fence")

    def test_failure_in_a_batch_leaves_no_trace(self, driver: Driver, job: Job) -> None:
        driver.say(READY)
        before = everything(job)
        beyond = step(2**70)
        answer = driver.send(2, step(1), trajectories(1), driver.checkpoint(1), beyond)
        assert answer.status_code == 422
        assert everything(job) == before


@pytest.mark.django_db(transaction=True)
def test_batches_of_four_senders_lose_and_repeat_nothing(
    driver: Driver, job: Job, in_own_connection: Callable[..., Any]
) -> None:
    """A shipper that timed out resends while its first batch is still being stored."""
    driver.say(READY)
    bodies = [step(n) for n in range(1, 61)]

    def ship(size: int) -> set[int]:
        sender, statuses, at = Driver(job.attempts.get()), set[int](), 0
        while at < len(bodies):
            response = sender.send(2 + at, *bodies[at : at + size])
            statuses.add(response.status_code)
            at = response.json()["acked"] - 1
        return statuses

    statuses = race(*(partial(in_own_connection(ship), size) for size in (1, 3, 7, 20)))
    assert set().union(*statuses) <= {200, 409}
    assert series(job, "reward/mean") == [(n, n / 10) for n in range(1, 61)]
    job.refresh_from_db()
    assert job.attempts.get().acked_seq == 61
    cursors = list(MetricPoint.objects.filter(series__name="loss").order_by("step").values_list("cursor", flat=True))
    assert cursors == sorted(set(cursors)) and cursors[-1] == job.cursor


class TestWhoMaySpeak:
    def test_older_fence_has_no_effect(self, driver: Driver, job: Job, now: datetime) -> None:
        driver.say(READY, step(1))
        with transaction.atomic():
            locked = locked_job(job.pk)
            change_state(locked, JobState.RECOVERING, actor="reconcile", now=now)
            second = Driver(begin_attempt(locked, now=now))
        before = everything(job)
        for answer in (driver.send(3, step(2)), driver.send(3, FINISHED), driver.beat()):
            assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (
                409,
                "stale_fence",
                False,
            )
        assert everything(job) == before
        second.say(READY, step(1, loss=0.5))
        assert series(job, "loss") == [(1, 1.0), (1, 0.5)]

    @pytest.mark.parametrize("change", [{"attempt": 2}, {"fence": 2}, {"attempt": 2, "fence": 2}])
    def test_token_is_valid_for_its_own_attempt_and_fence(self, driver: Driver, job: Job, change: Body) -> None:
        answer = driver.post("facts", driver.batch(1, [READY]) | change)
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_fence")
        beat = {"attempt": 1, "fence": 1, "step": 0} | change
        assert driver.post("heartbeat", beat).json()["code"] == "stale_fence"

    @pytest.mark.parametrize("token", ["", "lam_run_", "lam_run_" + "A" * 43, "\x00", "lam_live_x"])
    @pytest.mark.parametrize("path", ["facts", "heartbeat"])
    def test_invalid_token_is_refused(self, driver: Driver, job: Job, token: str, path: str) -> None:
        before = everything(job)
        answer = driver.post(path, driver.batch(1, [READY]), token=token)
        assert answer.status_code == 401 and answer["Content-Type"] == "application/problem+json"
        assert everything(job) == before

    def test_heartbeat_updates_last_seen(self, driver: Driver, job: Job) -> None:
        assert job.attempts.get().last_seen_at is None
        assert driver.beat().status_code == 200
        assert job.attempts.get().last_seen_at is not None


HOSTILE: dict[str, tuple[Callable[[Body], object], int]] = {
    "not json": (lambda batch: b"{", 400),
    "nan": (lambda batch: json.dumps(batch).replace("0.1", "NaN").encode(), 400),
    "infinity": (lambda batch: json.dumps(batch).replace("0.1", "1e999").encode(), 422),
    "bytes": (lambda batch: b"\xff\xfe", 400),
    "deep": (lambda batch: b"[" * 50_000, 400),
    "a list": (lambda batch: [batch], 422),
    "null": (lambda batch: None, 422),
    "no facts": (lambda batch: batch | {"facts": []}, 422),
    "no kind of fact": (lambda batch: batch | {"facts": [{"seq": 1, "at": AT, "body": {"type": "Job won!"}}]}, 422),
    "seq zero": (lambda batch: batch | {"facts": [batch["facts"][0] | {"seq": 0}]}, 422),
    "seq beyond": (lambda batch: batch | {"facts": [batch["facts"][0] | {"seq": 2**64}]}, 422),
    "too many facts": (lambda batch: batch | {"facts": [batch["facts"][0] | {"seq": n} for n in range(1, 202)]}, 422),
    "bad name": (lambda batch: json.dumps(batch).replace("loss", "Lo ss").encode(), 422),
    "nul": (lambda batch: batch | {"facts": [{"seq": 1, "at": AT, "body": trajectories(1, sample(prompt="\0"))}]}, 422),
    "nul in a key": (
        lambda batch: batch | {"facts": [{"seq": 1, "at": AT, "body": FINISHED | {"ledger": {"\0": 1}}}]},
        422,
    ),
    "lone surrogate": (
        lambda batch: batch | {"facts": [{"seq": 1, "at": AT, "body": trajectories(1, sample(response="\ud800"))}]},
        422,
    ),
    "too large": (lambda batch: b'{"a": "' + b"x" * 1_100_000 + b'"}', 413),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_input_is_refused_and_leaves_no_trace(driver: Driver, job: Job, name: str) -> None:
    spoil, status = HOSTILE[name]
    before = everything(job)
    answer = driver.post("facts", spoil(driver.batch(1, [step(1)])))
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    assert everything(job) == before


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2026-11-21T08:00:00", "1970-01-01T00:00:00Z"]
)
def test_facts_of_a_wrong_clock_get_the_database_time(driver: Driver, job: Job, at: str) -> None:
    batch = driver.batch(1, [step(1)])
    batch["facts"][0]["at"] = at
    assert driver.post("facts", batch).status_code == 200
    assert MetricPoint.objects.filter(series__job=job, at__year=2026).count() == 2


def test_metric_names_are_limited_and_loss_recorded_once(driver: Driver, job: Job) -> None:
    for n in range(1, 5):
        driver.say(step(n, **{f"m{n}_{index}": 1.0 for index in range(200)}))
    assert MetricSeries.objects.filter(job=job).count() == MOST_SERIES
    assert job.events.filter(type="series_limit_reached").count() == 1
    driver.say(step(5, m1_0=2.0))
    assert series(job, "m1_0")[-1] == (5, 2.0)


def test_every_kind_of_news_notifies_pages(driver: Driver, job: Job, pool: ResourcePool) -> None:
    job.refresh_from_db()
    for body in (READY, step(1), trajectories(1), {"type": "phase_changed", "phase": "training"}, driver.checkpoint(1)):
        before = job.cursor
        driver.say(body)
        job.refresh_from_db()
        assert job.cursor > before, body["type"]


def test_acknowledgement_of_another_jobs_request_is_ignored(driver: Driver, job: Job, now: datetime) -> None:
    driver.say({"type": "request_acknowledged", "request_id": "req_nobody"})
    assert not ControlRequest.objects.exists() and not job.events.filter(type="request_acknowledged").exists()
