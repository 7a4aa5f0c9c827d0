"""Judging jobs: the verdict follows the news; an alarm is recorded once when it begins and once when it ends."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from backend.accounts.models import User
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.verdicts import judging
from backend.verdicts.judging import JUDGE_AGAIN_AFTER, judge_due
from backend.verdicts.models import JobVerdict
from backend.verdicts.selectors import verdict_of
from backend.webhooks.fan_out import fan_out
from backend.webhooks.models import WebhookDelivery
from backend.webhooks.services import create_endpoint
from tests.backend.accounts.letters import letters_to, posts  # noqa: F401  # a fixture
from tests.backend.conftest import Api
from tests.backend.telemetry.test_live_delta import Engine
from tests.verdict.runs_of_numbers import HEALTHY, rising

READY = {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 9}
TRAINING = {"type": "phase_changed", "phase": "training"}
DOUBTED = {"reward/untrusted": 0.4}


class Trained:
    """A job whose engine reports steps."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self.job, self.engine, self.step = job, engine, 0

    def train(self, num: int, series: Mapping[str, float] | None = None, *, at: datetime | None = None) -> None:
        self.engine.now = at or self.engine.now
        rewards = rising(0.2, 0.8, 100)
        steps = []
        for _ in range(num):
            self.step += 1
            metrics = {**HEALTHY, "reward/mean": rewards[self.step], **(series or {})}
            steps.append({"type": "step_trained", "step": self.step, "metrics": metrics})
        self.engine.say(*steps)

    def events(self) -> list[tuple[str, str]]:
        rows = self.job.events.filter(type__startswith="alarm").order_by("seq")
        return list(rows.values_list("type", "reason"))

    def kinds(self) -> list[str]:
        return [finding.kind for finding in verdict_of(self.job).findings]


@pytest.fixture
def trained(job: Job, attempt: JobAttempt, now: datetime) -> Trained:
    engine = Engine(attempt, now)
    engine.say(READY, TRAINING)
    return Trained(job, engine)


def test_verdict_follows_news(trained: Trained, now: datetime) -> None:
    assert verdict_of(trained.job).findings == []
    assert judge_due(now=now) == 1
    assert trained.kinds() == ["early"]
    trained.train(20)
    assert judge_due(now=now + timedelta(seconds=5)) == 1
    verdict = verdict_of(trained.job)
    assert (verdict.findings[0].kind, verdict.step, verdict.is_alarm) == ("learning", 20, False)
    assert verdict.findings[0].evidence[0].points[-1][0] == 20, "a chart of its reward comes with it"


def test_job_without_news_is_judged_only_after_silence(trained: Trained, now: datetime) -> None:
    trained.train(10)
    assert judge_due(now=now) == 1
    assert judge_due(now=now + timedelta(seconds=5)) == 0, "a verdict is no news itself"
    assert judge_due(now=now + JUDGE_AGAIN_AFTER + timedelta(seconds=1)) == 1


def test_job_that_cannot_be_judged_delays_no_other(
    make_job: Callable[..., Job], now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [make_job(name=name).pk for name in ("broken", "well")]
    for age, job in enumerate(reversed(jobs)):
        at = now - timedelta(seconds=age)
        JobVerdict.objects.create(job_id=job, cursor=0, judged_at=at, step=0, stepped_at=at, kind="early", found=[])
    Job.objects.update(cursor=1)
    judged: list[str] = []

    def judge(job: Job, *, now: datetime) -> None:
        judged.append(job.pk)
        if job.pk == jobs[0]:
            raise ValueError("nan")

    monkeypatch.setattr(judging, "judge_job", judge)
    monkeypatch.setattr(judging, "AT_ONCE", 1)
    for seconds in (1, 2):
        assert judge_due(now=now + timedelta(seconds=seconds)) == 1
    assert judged == jobs


def test_alarm_is_recorded_at_begin_and_end_only(trained: Trained, now: datetime) -> None:
    trained.train(20, DOUBTED)
    judge_due(now=now)
    for tick in range(1, 4):
        trained.train(1, DOUBTED)
        judge_due(now=now + timedelta(seconds=5 * tick))
    assert trained.events() == [("alarm_raised", "untrusted")]
    assert verdict_of(trained.job).alarms == ["untrusted"]
    trained.train(12)
    judge_due(now=now + timedelta(seconds=30))
    assert trained.events() == [("alarm_raised", "untrusted"), ("alarm_ended", "untrusted")]
    assert trained.kinds() == ["learning"]


def test_alarm_event_carries_remedy(trained: Trained, now: datetime) -> None:
    trained.train(20, DOUBTED)
    judge_due(now=now)
    event = trained.job.events.get(type="alarm_raised")
    assert event.message.startswith("The environment does not trust 40 %")
    assert event.data["series"][0] == "reward/untrusted"
    assert event.data["remedy"] and event.data["step"] == 20


def test_silent_run_is_stalled_until_its_next_step(trained: Trained, now: datetime) -> None:
    trained.train(10)
    judge_due(now=now)
    later = now + timedelta(minutes=10)
    judge_due(now=later)
    assert trained.events() == [("alarm_raised", "stalled")]
    trained.train(1)
    judge_due(now=later + timedelta(seconds=5))
    assert trained.events()[-1] == ("alarm_ended", "stalled")


def test_paused_job_is_not_stalled(trained: Trained, now: datetime) -> None:
    trained.train(10)
    judge_due(now=now)
    with transaction.atomic():
        change_state(
            locked_job(trained.job.pk), JobState.PAUSING, actor="user:1", now=now, target_state=JobState.PAUSED
        )
    judge_due(now=now + timedelta(hours=1))
    assert trained.events() == []


def test_ended_job_is_judged_once_more_without_events(trained: Trained, now: datetime) -> None:
    trained.train(20, DOUBTED)
    trained.engine.say({"type": "run_finished", "outcome": "succeeded"})
    assert judge_due(now=now) == 0, "it was never judged while it ran"
    JobVerdict.objects.create(
        job=trained.job, cursor=0, judged_at=now, step=0, stepped_at=now, kind="early", found=[], alarms=[]
    )
    assert judge_due(now=now) == 1
    assert judge_due(now=now + timedelta(days=1)) == 0
    assert trained.kinds() == ["untrusted"] and verdict_of(trained.job).is_final
    assert trained.events() == []


def test_evaluation_is_not_judged(trained: Trained, now: datetime) -> None:
    Job.objects.filter(pk=trained.job.pk).update(steps=0)
    assert judge_due(now=now) == 0


def test_facts_arriving_during_judging_are_judged_next(
    trained: Trained, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.verdicts import judging, observations

    observed_of = observations.observed_of

    def then_more_come(*given: Any, **named: Any) -> Any:
        run = observed_of(*given, **named)
        trained.train(1)
        return run

    trained.train(10)
    monkeypatch.setattr(judging, "observed_of", then_more_come)
    judge_due(now=now)
    monkeypatch.undo()
    assert judge_due(now=now + timedelta(seconds=5)) == 1
    assert verdict_of(trained.job).step == 11


def test_of_two_concurrent_judges_one_writes(trained: Trained, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.verdicts import judging, observations

    observed_of = observations.observed_of

    def another_is_faster(*given: Any, **named: Any) -> Any:
        run = observed_of(*given, **named)
        monkeypatch.undo()
        judge_due(now=now + timedelta(seconds=1))
        return run

    trained.train(20, DOUBTED)
    monkeypatch.setattr(judging, "observed_of", another_is_faster)
    judge_due(now=now)
    assert trained.events() == [("alarm_raised", "untrusted")]


def test_changed_verdict_moves_job_cursor(trained: Trained, now: datetime) -> None:
    trained.train(20, DOUBTED)
    before = Job.objects.get(pk=trained.job.pk).cursor
    judge_due(now=now)
    assert Job.objects.get(pk=trained.job.pk).cursor > before


def test_alarms_go_out_by_webhook(trained: Trained, now: datetime) -> None:
    team = trained.job.team
    create_endpoint(
        team, url="https://example.org/x", events=["job.alarm_raised"], description="", actor="user:1", now=now
    )
    trained.train(20, DOUBTED)
    judge_due(now=now)
    fan_out(now=now)
    delivery = WebhookDelivery.objects.get()
    assert delivery.type == "job.alarm_raised"
    assert json.loads(delivery.body)["data"]["event"]["reason"] == "untrusted"


@pytest.mark.usefixtures("posts")
def test_submitter_gets_alarm_mail(
    trained: Trained, alice: User, now: datetime, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    trained.train(20, DOUBTED)
    with django_capture_on_commit_callbacks(execute=True):
        judge_due(now=now)
    (letter,) = letters_to(alice.email)
    assert "does not trust 40 %" in letter and f"/jobs/{trained.job.pk}/" in letter


@pytest.mark.usefixtures("posts")
def test_deactivated_submitter_gets_no_alarm_mail(
    trained: Trained, alice: User, now: datetime, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    User.objects.filter(pk=alice.pk).update(is_active=False)
    trained.train(20, DOUBTED)
    with django_capture_on_commit_callbacks(execute=True):
        judge_due(now=now)
    assert letters_to(alice.email) == []


def test_api_returns_the_verdict(trained: Trained, now: datetime, api: Api) -> None:
    path = f"/jobs/{trained.job.pk}/verdict"
    assert api.get(path).json()["judged_at"] is None
    trained.train(20, DOUBTED)
    judge_due(now=now)
    answer = api.get(path).json()
    assert answer["alarms"] == ["untrusted"] and answer["is_alarm"]
    first = answer["findings"][0]
    assert (first["kind"], first["word"], first["tone"]) == ("untrusted", "rewards not trusted", "alarm")
    assert first["remedy"] and first["evidence"][0]["series"] == "reward/untrusted"
