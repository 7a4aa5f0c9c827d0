"""The tiles of a job's page: the initial page and its pulls show the same, in every state of a job."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from backend.clock import database_now
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import TERMINAL_STATES, Job, JobState
from backend.pages.job.panels.charts import (
    HELD_OUT,
    HELD_OUT_ERROR,
    PASSED,
    PASSED_ERROR,
    REWARD,
    SEGMENTS,
    STEP_S,
    UNTRUSTED,
)
from backend.pages.job.panels.tiles import tiles_of
from backend.telemetry.models import MetricPoint, MetricRollup, MetricSeries
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World

NOW = datetime(2026, 11, 5, 12, tzinfo=UTC)
LONG = timedelta(days=500, minutes=20)
"""An elapsed time whose text does not change within a few seconds."""


def as_page_shows(html: str) -> dict[str, str]:
    """Each text by its place, and the attributes."""
    [section] = re.findall(r'<section class="vitals.*?</section>', html, re.S)
    texts = dict(re.findall(r'data-value="([a-z_.]+)">([^<]*)<', section))
    [num_done] = re.findall(r'value="(\d+)" data-progress', section)
    [tone] = re.findall(r'data-held-out data-tone="(\w+)"', section)
    title = re.findall(r"<title>([^<]*)</title>", html)[0]  # the others are inside SVGs
    found = texts | {"num_done": num_done, "held_out.tone": tone, "title": title}
    return {name: unescape(text) for name, text in found.items()}


def as_told(tiles: Mapping[str, Any]) -> dict[str, str]:
    flat = {name: str(value) for name, value in tiles.items() if not isinstance(value, dict)}
    return flat | {f"held_out.{name}": str(value) for name, value in tiles["held_out"].items()}


WAYS: Mapping[str, tuple[str, ...]] = {
    "queued": ("recovering", "queued"),
    "starting": ("recovering", "starting"),
    "running": (),
    "recovering": ("recovering",),
    "pausing": ("pausing",),
    "paused": ("pausing", "paused"),
    "stopping": ("stopping",),
    "succeeded": ("stopping", "succeeded"),
    "failed": ("stopping", "failed"),
    "cancelled": ("stopping", "cancelled"),
}
"""From `running`."""


def job_in(world: World, state: str, *, only_evaluates: bool) -> Job:
    if state == JobState.VALIDATING:
        job = seed.submitted(world, environment={"name": "custom", "code": "prompt = respond = print"})
    else:
        job = seed.running(world, steps_done=6)
        Job.objects.filter(pk=job.pk).update(started_at=database_now() - LONG)
    if only_evaluates:
        Job.objects.filter(pk=job.pk).update(steps=0, step=0, answered=40)
    with transaction.atomic():
        locked = locked_job(job.pk)
        for step in WAYS.get(state, ()):
            change_state(locked, JobState(step), actor="test", now=database_now())
    return job


@pytest.mark.long_except("False-validating", "False-pausing", "True-validating", "True-failed")
@pytest.mark.django_db
@pytest.mark.parametrize("state", JobState.values)
@pytest.mark.parametrize("only_evaluates", [False, True])
def test_the_page_and_its_pull_say_the_same(world: World, owner: Client, state: str, only_evaluates: bool) -> None:
    job = job_in(world, state, only_evaluates=only_evaluates)
    page = text_of(owner.get(f"/jobs/{job.pk}/"))
    shown, pulled = as_page_shows(page), as_told(owner.get(f"/jobs/{job.pk}/live?after=0").json()["tiles"])
    seed_of_script = re.search(r'<script id="live-seed" type="application/json">(.*?)</script>', page, re.S)
    assert seed_of_script is not None
    began = as_told(json.loads(seed_of_script[1])["tiles"])
    assert {
        "done",
        "num_done",
        "elapsed",
        "left",
        "held_out.first",
        "held_out.change",
        "held_out.words",
    } <= shown.keys()
    assert {name: pulled[name] for name in shown} == shown == {name: began[name] for name in shown}
    has_begun = state != JobState.VALIDATING
    assert pulled["is_ticking"] == str(has_begun and state not in TERMINAL_STATES)
    assert (shown["elapsed"] != "–") == has_begun and shown["title"].endswith(f" · {job.name}")


@pytest.mark.long_except("validating", "queued", "starting", "running", "recovering", "paused")
@pytest.mark.django_db
@pytest.mark.parametrize("state", JobState.values)
def test_only_what_runs_counts_down(world: World, state: str) -> None:
    job = job_in(world, state, only_evaluates=False)
    job.refresh_from_db()
    left = tiles_of(job, now=database_now()).left
    assert left.startswith("about ") == (state == JobState.RUNNING)
    assert bool(left) == (state == JobState.RUNNING or state in TERMINAL_STATES)


class TestHeldOut:
    @pytest.fixture
    def job(self, world: World) -> Job:
        job = seed.running(world, steps_done=1)
        MetricPoint.objects.filter(series__job=job).delete()
        return job

    def measured(self, job: Job, *points: tuple[int, int, float], name: str = HELD_OUT) -> MetricSeries:
        """(attempt, step, value)."""
        series, _ = MetricSeries.objects.get_or_create(job=job, name=name)
        MetricPoint.objects.bulk_create(
            MetricPoint(series=series, attempt=attempt, step=step, at=NOW, value=value, cursor=1)
            for attempt, step, value in points
        )
        return series

    def told(self, job: Job) -> tuple[str, str, str, str, str]:
        tile = tiles_of(job, now=NOW).held_out
        return tile.first, tile.last, tile.change, tile.words, tile.tone

    def test_before_anything_was_measured(self, job: Job) -> None:
        assert self.told(job) == ("–", "–", "", "measured before and after training", "plain")

    def test_before_training_only(self, job: Job) -> None:
        self.measured(job, (1, 0, 0.25))
        assert self.told(job) == ("0.25", "–", "", "before training; the second result comes at the end", "plain")
        job.state = JobState.FAILED
        assert self.told(job)[3] == "before training; the job ended before the second evaluation"

    @pytest.mark.parametrize(("after", "change", "tone"), [(0.75, "+0.50", "good"), (0.0, "−0.25", "bad")])
    def test_before_and_after_is_good_news_or_bad(self, job: Job, after: float, change: str, tone: str) -> None:
        self.measured(job, (1, 0, 0.25), (1, 60, 0.1), (1, 120, 0.9), (2, 120, after))
        words = "on prompts never trained on"
        assert self.told(job) == ("0.25", f"{after:.2f}", change, words, tone), "of a step done again the later one"

    def test_newest_result_comes_with_its_errors(self, job: Job) -> None:
        self.measured(job, (1, 0, 0.25), (1, 120, 0.75))
        for name, value in ((HELD_OUT_ERROR, 0.027), (PASSED, 0.875), (PASSED_ERROR, 0.021)):
            self.measured(job, (1, 0, 0.5), (1, 120, value), name=name)
        errors = "± 0.027 (standard error), pass@1 0.88 ± 0.021"
        assert self.told(job)[3] == f"on prompts never trained on; {errors}"

    def test_job_from_checkpoint_begins_with_its_score(self, job: Job) -> None:
        job.start_from = "ckpt_1"
        job.attempts.update(resume_step=100)
        self.measured(job, (1, 100, 0.5), (1, 160, 0.75))
        assert self.told(job) == ("0.50", "0.75", "+0.25", "on prompts never trained on", "good")

    def test_job_whose_first_evaluation_was_lost_has_no_first_score(self, job: Job) -> None:
        self.measured(job, (1, 160, 0.75))
        assert self.told(job) == ("–", "0.75", "", "not measured before training", "plain")

    def test_the_first_number_outlives_its_point(self, job: Job) -> None:
        """For a job that ended long ago, early points are only in the rollups."""
        series = self.measured(job, (1, 2_000, 0.75))
        MetricSeries.objects.filter(pk=series.pk).update(is_reduced=True, rolled_to=2_000)
        common = {"series": series, "first_step": 0, "count": 1, "total": 0.25, "low": 0.25, "high": 0.25}
        for size in (16, 128):
            MetricRollup.objects.create(size=size, last_step=0, **common)
        assert self.told(job)[:3] == ("0.25", "0.75", "+0.50")

    def test_a_reward_that_was_not_trusted_is_told(self, job: Job) -> None:
        assert tiles_of(job, now=NOW).reward_text == "of the training batch"
        self.measured(job, (1, 3, 0.125), name=UNTRUSTED)
        assert tiles_of(job, now=NOW).reward_text == "of the training batch; 12.5 % not trusted, not trained on"

    def test_segments_are_told_where_a_trajectory_has_several(self, job: Job) -> None:
        self.measured(job, (1, 3, 1.0), name=SEGMENTS)
        assert tiles_of(job, now=NOW).reward_text == "of the training batch"
        self.measured(job, (4, 5, 2.25), name=SEGMENTS)
        assert tiles_of(job, now=NOW).reward_text == "of the training batch; 2.25 segments per trajectory"

    def test_it_costs_one_trip_however_long_the_job_ran(self, job: Job) -> None:
        for name in (HELD_OUT, REWARD, STEP_S):
            self.measured(job, *((1, step, 0.5) for step in range(3_000)), name=name)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            tiles = tiles_of(job, now=NOW)
        assert len(queries) == 1 and tiles.reward == "0.50"
