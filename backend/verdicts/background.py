"""The periodic task that judges jobs. A lost tick only delays; of two at once, one writes."""

from time import monotonic
from typing import Final

from celery import shared_task

from backend.clock import database_now
from backend.verdicts.judging import judge_due

AT_MOST_S: Final = 10.0  # jobs not reached come first in the next tick


@shared_task(name="verdicts.judge")
def judge() -> None:
    end = monotonic() + AT_MOST_S
    judge_due(now=database_now(), has_time=lambda: monotonic() < end)
