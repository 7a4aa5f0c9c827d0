"""Background validation: what is checked, the outcome, and a spec that crashes its validator."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from backend.accounts.models import Team
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job, OutboxMessage
from backend.jobs.submitting import validation
from backend.jobs.submitting.code_check import check_code
from backend.jobs.submitting.submit import Submitter, submit_job
from backend.jobs.submitting.validation import MOST_VALIDATIONS, forgotten_validations, validate_job
from backend.pools.models import TeamQuota
from engine.spec.job import JobSpec
from tests.backend.conftest import MakeCheckpoint, MakeJob, given_asset

GOOD = """
def prompt(split, ordinal, seed, params):
    return {"text": "1+1"}

def respond(prompt, turns):
    return {"reward": 1.0}
"""


@pytest.fixture
def custom(make_job: MakeJob) -> Job:
    return make_job(environment={"name": "custom", "code": GOOD})


def test_job_without_checks_is_queued_at_once(job: Job) -> None:
    assert job.state == "queued"
    assert set(OutboxMessage.objects.values_list("topic", flat=True)) == {"schedule"}


def test_job_with_code_is_validated_then_queued(custom: Job, now: datetime) -> None:
    assert (custom.state, custom.queued_at) == ("validating", None)
    assert OutboxMessage.objects.get().topic == "validate"
    later = now + timedelta(seconds=2)
    for _ in range(2):
        validate_job(custom.pk, now=later)
    custom.refresh_from_db()
    assert (custom.state, custom.queued_at, custom.reason) == ("queued", later, "not_evaluated_yet")
    assert list(custom.events.order_by("seq").values_list("to_state", flat=True)) == ["validating", "queued"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def prompt(:\n  pass", "not valid Python in line 1"),
        ("def prompt(split, ordinal, seed, params): ...", "does not define respond"),
        ("x = 1", "does not define prompt and respond"),
        ("(" * 50_000, "environment.code"),
        ("-" * 99_000 + "1", "environment.code"),
    ],
)
def test_invalid_code_fails_the_job_before_queueing(make_job: MakeJob, now: datetime, code: str, message: str) -> None:
    job = make_job(environment={"name": "custom", "code": code})
    validate_job(job.pk, now=now)
    job.refresh_from_db()
    assert (job.state, job.failure_class) == ("failed", "reward") and message in job.message
    assert not job.reservations.exists()


def test_questions_from_a_file_need_no_prompt_function(make_job: MakeJob, team: Team, now: datetime) -> None:
    given_asset(team, "data", "a.jsonl")
    for code, state in (("def respond(*_): ...", "queued"), ("def prompt(*_): ...", "failed")):
        job = make_job(environment={"name": "graded", "params": {"data": "a.jsonl"}, "code": code})
        validate_job(job.pk, now=now)
        job.refresh_from_db()
        assert job.state == state


@pytest.mark.parametrize(
    "code",
    [
        "from mine import *",
        "prompt = respond = None",
        "if True:\n  def prompt(): ...\n  def respond(): ...",
    ],
)
def test_code_that_may_define_them_is_accepted(code: str) -> None:
    assert check_code(code, ("prompt", "respond")) is None


def test_code_is_not_run(tmp_path: Path) -> None:
    assert check_code(f"open({str(tmp_path)!r} + '/ran', 'w')\n{GOOD}", ("respond",)) is None
    assert not list(tmp_path.iterdir())


def test_missing_checkpoint_fails_the_job(
    job: Job, make_checkpoint: MakeCheckpoint, make_job: MakeJob, now: datetime
) -> None:
    checkpoint = make_checkpoint(job, step=10)
    child = submit_job(
        team=job.team,
        project=job.project,
        by=Submitter(user=job.created_by, key=None),
        spec=JobSpec.model_validate(job.spec),
        pool=job.pool,
        now=now,
        start_from=checkpoint.pk,
    )
    type(checkpoint).objects.filter(pk=checkpoint.pk).update(state="corrupt")
    validate_job(child.pk, now=now)
    child.refresh_from_db()
    assert (child.state, child.failure_class) == ("failed", "data")


def test_quota_cut_during_validation_fails_the_job(custom: Job, now: datetime) -> None:
    TeamQuota.objects.filter(team=custom.team).update(nominal=0, borrow_limit=0)
    validate_job(custom.pk, now=now)
    custom.refresh_from_db()
    assert (custom.state, custom.failure_class) == ("failed", "config")


def test_spec_crashing_its_validator_is_refused_after_three(
    custom: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(code: str, wanted: tuple[str, ...]) -> None:
        raise SystemExit("killed for its memory")

    monkeypatch.setattr(validation, "check_code", die)
    for _ in range(MOST_VALIDATIONS):
        with pytest.raises(SystemExit):
            validate_job(custom.pk, now=now)
    validate_job(custom.pk, now=now)
    custom.refresh_from_db()
    assert (custom.state, custom.failure_class) == ("failed", "config")


def test_beat_validates_job_of_lost_message(custom: Job, now: datetime) -> None:
    OutboxMessage.objects.all().delete()
    assert forgotten_validations(now + timedelta(seconds=20)) == []
    assert forgotten_validations(now + timedelta(seconds=40)) == [custom.pk]


def test_job_cancelled_during_validation_stays_cancelled(custom: Job, now: datetime) -> None:
    cancel_job(custom.pk, actor="user:1", now=now)
    validate_job(custom.pk, now=now)
    custom.refresh_from_db()
    assert custom.state == "cancelled"
