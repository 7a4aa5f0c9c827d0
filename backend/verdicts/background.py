"""The background task of verdicts. A lost tick costs a delay; two at once write once."""

from time import monotonic
from typing import Final

from celery import shared_task

from backend.clock import database_now
from backend.verdicts.judging import judge_due

AT_MOST_S: Final = 10.0  # jobs that are not reached are the first of the next tick


@shared_task(name="verdicts.judge")
def judge() -> None:
    end = monotonic() + AT_MOST_S
    judge_due(now=database_now(), has_time=lambda: monotonic() < end)
