"""What needs the user's attention: their jobs with an alarm, failed or paused ones, and quota requests for operators.

Invariants:
- a failed job is listed until it is retried, and for three days at most: after that, the user has decided;
- colleagues' jobs are counted, not listed: their owners take care of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from django.db.models import Exists, Max, OuterRef, QuerySet
from django.urls import reverse

from backend.accounts.models import User
from backend.accounts.selectors import MAY_SUBMIT
from backend.jobs.models import TERMINAL_STATES, Job, JobEvent, JobState
from backend.jobs.selectors import jobs_visible_to
from backend.pages import words
from backend.pages.jobs.judged import ill_jobs, judged_of
from backend.quota_requests.questions import open_questions

FAILURES_TOLD_FOR: Final = timedelta(days=3)
MOST_OF_A_KIND: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    kind: Literal["alarm", "failed", "paused", "question"]
    word: str
    title: str
    address: str
    detail: str
    remedy: str = ""
    since: datetime | None = None
    act: str = ""
    """The URL name of the action; its argument is `job`."""
    act_title: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """A count of colleagues' jobs: the URL of their list, and the text."""

    address: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    listed: Sequence[Need]
    more: int
    """The number of the user's jobs that are not listed."""
    others: Sequence[Others]


def needs_of(user: User, *, now: datetime) -> Needs:
    visible = jobs_visible_to(user)
    kinds = {"alarm": _ill(visible), "failed": _failed(visible, now=now), "paused": _paused(visible)}
    mine = {kind: jobs.filter(created_by=user) for kind, jobs in kinds.items()}
    shown = {kind: list(jobs[: MOST_OF_A_KIND + 1]) for kind, jobs in mine.items()}
    more = sum(mine[kind].count() - MOST_OF_A_KIND for kind, jobs in shown.items() if len(jobs) > MOST_OF_A_KIND)
    teams = set(user.memberships.filter(role__in=MAY_SUBMIT).values_list("team_id", flat=True))
    return Needs(
        listed=[
            *_questions(user),
            *_alarms(shown["alarm"][:MOST_OF_A_KIND]),
            *_failures(shown["failed"][:MOST_OF_A_KIND], teams),
            *_rests(shown["paused"][:MOST_OF_A_KIND], teams),
        ],
        more=more,
        others=list(_of_others({kind: jobs.exclude(created_by=user).count() for kind, jobs in kinds.items()})),
    )


def _ill(visible: QuerySet[Job]) -> QuerySet[Job]:
    return visible.exclude(state__in=TERMINAL_STATES).filter(pk__in=ill_jobs())


def _failed(visible: QuerySet[Job], *, now: datetime) -> QuerySet[Job]:
    lately = visible.filter(state=JobState.FAILED, finished_at__gt=now - FAILURES_TOLD_FOR)
    return lately.exclude(Exists(Job.objects.filter(parent=OuterRef("pk"))))


def _paused(visible: QuerySet[Job]) -> QuerySet[Job]:
    return visible.filter(state=JobState.PAUSED)


def _questions(user: User) -> Iterator[Need]:
    for each in open_questions()[:MOST_OF_A_KIND] if user.is_staff else ():
        yield Need(
            kind="question",
            word="quota request",
            title=each.team.name,
            address=reverse("operator_questions"),
            detail=f"{each.wanted:,} devices of pool {each.pool.name}: {each.reason}",
            since=each.asked_at,
        )


def _alarms(jobs: Sequence[Job]) -> Iterator[Need]:
    judged = judged_of(jobs)
    raised = JobEvent.objects.filter(job__in=jobs, type="alarm_raised")
    since = dict(raised.values_list("job_id").annotate(at=Max("at")).order_by())
    for job in jobs:
        if job.pk in judged:
            judged_job = judged[job.pk]
            yield Need(
                kind="alarm",
                word=judged_job.first.word,
                title=job.name,
                address=reverse("job", args=[job.pk]),
                detail=judged_job.first.sentence,
                remedy=judged_job.first.remedy,
                since=since.get(job.pk, judged_job.at),
                job=job.pk,
            )


def _failures(jobs: Sequence[Job], teams: set[str]) -> Iterator[Need]:
    for job in jobs:
        first_line = next(iter(job.message.strip().splitlines()), "")
        yield Need(
            kind="failed",
            word="failed",
            title=job.name,
            address=reverse("job", args=[job.pk]),
            detail=first_line or words.plain(job.failure_class, words.REASONS),
            since=job.finished_at,
            act="retry_job" if job.team_id in teams else "",
            act_title="Retry",
            job=job.pk,
        )


def _rests(jobs: Sequence[Job], teams: set[str]) -> Iterator[Need]:
    to_rest = JobEvent.objects.filter(job__in=jobs, to_state=JobState.PAUSED)
    since = dict(to_rest.values_list("job_id").annotate(at=Max("at")).order_by())
    for job in jobs:
        done = f"Paused after {job.num_done:,} of {job.num_to_do:,} {'prompts' if job.only_evaluates else 'steps'}"
        yield Need(
            kind="paused",
            word="paused",
            title=job.name,
            address=reverse("job", args=[job.pk]),
            detail=f"{done}. Holds no devices.",
            since=since.get(job.pk),
            act="resume_job" if job.team_id in teams else "",
            act_title="Resume",
            job=job.pk,
        )


def _of_others(nums: dict[str, int]) -> Iterator[Others]:
    jobs = reverse("jobs")
    texts = {
        "alarm": (f"{jobs}?state=active&verdict=alarm", "with an alarm"),
        "failed": (f"{jobs}?state=failed", "failed in the last three days and not retried"),
        "paused": (f"{jobs}?state=paused", "paused"),
    }
    for kind, (address, detail) in texts.items():
        if nums[kind]:
            yield Others(address=address, detail=f"{nums[kind]:,} {detail}")
