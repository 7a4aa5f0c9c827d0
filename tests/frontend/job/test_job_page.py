"""A job's page without scripts, and the pulls of its scripts."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import resolve, reverse

from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.attempts.failures import add_log_tail
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from backend.jobs.submitting.retrying import retry_job
from backend.jobs.submitting.submit import Submitter
from backend.pages.job.panels.charts import OF_A_TEACHER, OF_EVALUATIONS, charts_of
from backend.pages.job.panels.snapshot import snapshot_of
from backend.pages.job.panels.timeline import timeline_of
from backend.pages.job.tabs import TABS
from backend.telemetry.models import MetricPoint, MetricSeries, Removal, RemovedKind, Trajectory
from backend.telemetry.series.drawing import MAX_POINTS
from backend.telemetry.series.points import NewPoint, store_points
from backend.telemetry.series.rollups import ROLL_AFTER
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World
from tests.frontend.seed_samples import SAMPLES_A_STEP


@pytest.mark.long
def test_a_jobs_page_is_useful_without_scripts(world: World, owner: Client) -> None:
    job = seed.finished(world, steps=56)
    page = unescape(text_of(owner.get(f"/jobs/{job.pk}/")))
    for expected in (">56</span>", "0.27", "0.78", "+0.51", "succeeded", "Checkpoint saved"):
        assert expected in page
    assert "reward/mean" in text_of(owner.get(f"/jobs/{job.pk}/metrics/"))
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/"))
    assert page.count('<details class="sample"') == SAMPLES_A_STEP, "the newest step's"


def test_every_stored_step_is_readable_under_its_number(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=30)
    job.trajectories.filter(step__in=(8, 9)).delete()
    Trajectory.objects.filter(job=job, step=2).update(response="what was written at step two")
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/?step=2"))
    assert ">Step 2</p>" in page and page.count("what was written at step two") == SAMPLES_A_STEP
    assert 'href="?step=1#reading"' in page and 'href="?step=3#reading"' in page
    part = " ".join(text_of(owner.get(f"/jobs/{job.pk}/trajectories/?part=reading&step=9")).split())
    assert "No trajectories of step 9 are stored" in part and "<article" not in part
    assert [f'href="?step={step}#reading"' in part for step in (7, 8, 10)] == [True, False, True]
    assert len(part) < len(page) / 10, "only the requested part"
    assert ">Step 30</p>" in text_of(owner.get(f"/jobs/{job.pk}/trajectories/?step=nonsense"))


def test_what_was_removed_is_told_where_it_was_read(world: World, owner: Client) -> None:
    job = seed.finished(world, steps=3)
    Removal.objects.create(job=job, kind=RemovedKind.TRAJECTORIES, at=datetime(2026, 3, 4, tzinfo=UTC))
    page = text_of(owner.get(f"/jobs/{job.pk}/trajectories/"))
    assert "The trajectories of this job were removed on 2026-03-04" in page and "<article" not in page


def test_rewards_that_are_not_trusted_are_told_beside_the_reward(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    assert "not trusted" not in text_of(owner.get(f"/jobs/{job.pk}/"))
    seed.trained(world, job, 6, untrusted=0.125)
    assert "12.5 % not trusted" in text_of(owner.get(f"/jobs/{job.pk}/"))
    assert owner.get(f"/jobs/{job.pk}/live?after=0").json()["series"]["reward/untrusted"][-1] == [6, 0.125]


def test_page_charts_wait_and_queue_of_graders(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=3)
    page = text_of(owner.get(f"/jobs/{job.pk}/metrics/"))
    assert "Grading wait" in page and "Grading queue" in page
    drawn = snapshot_of(job).drawn.series
    for key in ("environment/queue_s_mean", "environment/queue_s_max", "environment/queue_depth"):
        assert key in page and len(drawn[key]) == 3


def test_page_charts_failed_samples_and_their_groups(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=3)
    page = text_of(owner.get(f"/jobs/{job.pk}/metrics/"))
    assert "Failed samples" in page and "Groups with failures" in page
    drawn = snapshot_of(job).drawn.series
    assert [value for _, value in drawn["failures/samples"]] == [0.0, 0.0, 1.0]
    for key in ("failures/replacements", "failures/short_groups", "failures/groups"):
        assert key in page and len(drawn[key]) == 3


def test_teacher_distance_chart_needs_a_teacher(world: World, owner: Client) -> None:
    title, key = "Distance to the teacher", "train/teacher_kl"
    alone = seed.running(world, steps_done=2)
    assert title not in text_of(owner.get(f"/jobs/{alone.pk}/metrics/"))
    taught = seed.running(world, steps_done=3, algorithm={"teacher": {"source": "demo"}})
    page = owner.get(f"/jobs/{taught.pk}/metrics/")
    assert title in text_of(page) and f"names={key}" in unescape(text_of(page))
    assert len(snapshot_of(taught).drawn.series[key]) == 3 and not snapshot_of(alone).drawn.series.get(key)
    assert OF_A_TEACHER not in charts_of(alone) and OF_A_TEACHER in charts_of(taught)


def test_pass_rate_chart_needs_evaluation_during_training(world: World, owner: Client) -> None:
    ends_only = seed.running(world, steps_done=2)
    assert OF_EVALUATIONS not in charts_of(ends_only)
    between = seed.finished(world, steps=3, evaluation={"every": 1})
    page = owner.get(f"/jobs/{between.pk}/metrics/")
    assert "Held-out pass rate" in text_of(page) and "names=evaluation/pass_rate" in unescape(text_of(page))
    drawn = [*snapshot_of(between).drawn.series["evaluation/pass_rate"]]
    assert drawn == [(0, seed.HELD_OUT_BEFORE), (3, seed.HELD_OUT_AFTER)]


def test_a_failed_job_says_what_to_do(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get(f"/jobs/{seed.failed(world).pk}/")))
    assert "Failed: config" in page
    assert "from 2 to max_terms (64), got 80.0" in page
    assert "Fix the spec as the message describes" in page


def test_a_failed_job_shows_what_its_parts_said_last(world: World, owner: Client) -> None:
    job = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=1))
    page = " ".join(unescape(text_of(owner.get(f"/jobs/{job.pk}/"))).split())
    assert "Failed: user code" in page and "Fix the environment's code" in page
    assert page.index("<figcaption>environment") < page.index("the grader raised for prompt 4183")
    assert page.index("<figcaption>trainer") < page.index("no batch for 60 s; giving up")
    assert "step 12" in page and "environment: it dies" in page and "fact 5" in page


def test_a_traceback_is_shown_once_and_folded_below_what_it_says(world: World, owner: Client) -> None:
    frame = 'File "/box/grader.py", line 41, in score'
    trace = f"Traceback (most recent call last):\n  {frame}\n    return right / len(said)\nZeroDivisionError: no words"
    job = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=1), trace=trace)
    add_log_tail(job.attempts.get(), f"Loading weights\n12:00:01 ERROR environment {trace}\nDriver ended with 1")
    page = unescape(text_of(owner.get(f"/jobs/{job.pk}/")))
    regions = page[page.index("<h1") :]
    assert regions.count(frame) == 1
    folded = re.findall(r"<details.*?</details>", regions, re.S)
    assert [frame in each for each in folded].count(True) == 1
    assert "ZeroDivisionError: no words</p>" in regions, "what happened is not folded"
    assert any("Driver ended with 1" in each and "Loading weights" in each for each in folded)


def test_retries_and_continued_jobs_link_to_each_other(world: World, owner: Client) -> None:
    first = seed.finished(world, steps=5, name="Sums")
    by, now = Submitter(user=world.owner, key=None), datetime.now(UTC)
    second, third = (retry_job(first, start_from="start", changes={}, by=by, now=now) for _ in range(2))
    assert [job.name for job in (second, third)] == ["Sums (retry 1)", "Sums (retry 2)"]
    cancel_job(third.pk, actor="test", now=now)
    fourth = retry_job(third, start_from="start", changes={"training": {"steps": 7}}, by=by, now=now)
    named = retry_job(third, start_from="start", changes={"name": "Mine"}, by=by, now=now)
    assert (fourth.name, named.name) == ("Sums (retry 3)", "Mine")
    saved = _checkpoint(first, step=5)
    continued = seed.submitted(world, start_from=saved.pk, name="Longer sums", training={"steps": 9})
    pages = {job: " ".join(text_of(owner.get(f"/jobs/{job.pk}/")).split()) for job in (first, third, continued)}
    assert f'retry of <a href="/jobs/{first.pk}/" dir="auto">Sums</a>' in pages[third]
    assert f'retried as <a href="/jobs/{third.pk}/" dir="auto">Sums (retry 2)</a> (cancelled)' in pages[first]
    assert f'continued from step 5 by <a href="/jobs/{continued.pk}/" dir="auto">Longer sums</a>' in pages[first]
    assert (
        f'continued from <a href="/jobs/{first.pk}/checkpoints/#{saved.pk}">step 5 of <bdi>Sums</bdi>'
        in pages[continued]
    )
    assert "retry of" not in pages[first]
    assert 'value="Sums (again)"' in text_of(owner.get(f"/jobs/new?from={third.pk}"))


def test_a_checkpoint_has_the_result_that_its_own_run_measured(world: World, owner: Client) -> None:
    job = seed.finished(world, steps=5)
    for step in (3, 5):
        _checkpoint(job, step=step)
    page = " ".join(text_of(owner.get(f"/jobs/{job.pk}/checkpoints/")).split())
    newest, older = re.findall(r'<th scope="row">[35]</th>.*?</tr>', page)
    assert "<b>0.78</b>" in newest and "measured by this run" in newest and "none yet" not in newest
    assert "none yet" in older


def _checkpoint(job: Job, *, step: int) -> Checkpoint:
    now = datetime.now(UTC)
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=f"file:///store/{step}", manifest_sha256="0" * 64,
        num_bytes=1, created_at=now, verified_at=now, state=CheckpointState.COMPLETE,
    )  # fmt: skip


def test_cancelling_without_scripts(world: World, owner: Client) -> None:
    job = seed.submitted(world)
    assert "This cannot be undone" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))
    page = text_of(owner.post(f"/jobs/{job.pk}/cancel", follow=True))
    assert "The job is cancelled." in page
    assert "You cannot cancel this job" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))


def test_cancelling_what_has_ended_is_told_in_words(world: World, owner: Client) -> None:
    page = text_of(owner.post(f"/jobs/{seed.finished(world, steps=2).pk}/cancel", follow=True))
    assert "You cannot cancel this job because it is succeeded." in page


def test_the_pull_gives_what_is_new_and_only_that(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    cursor = owner.get(f"/jobs/{job.pk}/live?after=0").json()["cursor"]
    seed.trained(world, job, 6, reward=0.5)
    news = owner.get(f"/jobs/{job.pk}/live?after={cursor}").json()
    assert news["series"]["reward/mean"] == [[6, 0.5]]
    assert news["sampled_step"] == 6
    assert news["job"]["step"] == 6
    assert owner.get(f"/jobs/{job.pk}/live?after={news['cursor']}").json()["series"] == {}


def test_a_step_is_told_in_little_however_long_its_texts_are(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    cursor = owner.get(f"/jobs/{job.pk}/live?after=0").json()["cursor"]
    seed.trained(world, job, 6)
    job.trajectories.update(prompt="p" * 4_000, response="r" * 4_000)
    assert len(owner.get(f"/jobs/{job.pk}/live?after={cursor}").content) < 10_000


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 30, "٣", ""])
def test_a_malformed_cursor_is_refused(world: World, owner: Client, after: str) -> None:
    assert owner.get(f"/jobs/{seed.submitted(world).pk}/live", {"after": after}).status_code == 422


def test_the_first_load_is_small_and_keeps_the_spikes(world: World) -> None:
    job = seed.running(world, steps_done=1)
    series = MetricSeries.objects.get(job=job, name="reward/mean")
    MetricPoint.objects.bulk_create(
        MetricPoint(
            series=series, attempt=1, step=step, at=datetime.now(UTC), value=9.0 if step == 2_345 else 0.5, cursor=1
        )
        for step in range(2, 5_001)
    )
    MetricPoint.objects.create(series=series, attempt=2, step=4_000, at=datetime.now(UTC), value=-3.0, cursor=2)
    drawn = snapshot_of(job).drawn
    assert len(drawn.series["reward/mean"]) <= MAX_POINTS and sum(drawn.counts["reward/mean"]) == 5_000
    bands = {range(before[0] + 1, band[0] + 1): band[1:] for before, band in pairwise(drawn.bands["reward/mean"])}
    assert [ends for steps, ends in bands.items() if 2_345 in steps] == [(0.5, 9.0)]
    assert [ends for steps, ends in bands.items() if 4_000 in steps] == [(-3.0, 0.5)], "the later attempt's"


@pytest.mark.parametrize("num_steps", [ROLL_AFTER - 24, 10 * ROLL_AFTER], ids=["from points", "from rollups"])
def test_a_long_chart_ends_with_what_is_called_the_reward_now(world: World, owner: Client, num_steps: int) -> None:
    job = seed.running(world, steps_done=1)
    points = [
        NewPoint(name="reward/mean", step=step, at=datetime.now(UTC), value=(step * 37 % 101) / 100, cursor=step)
        for step in range(2, num_steps)
    ]
    points.append(NewPoint(name="reward/mean", step=num_steps, at=datetime.now(UTC), value=0.73, cursor=num_steps))
    store_points(job, 1, points)
    page = text_of(owner.get(f"/jobs/{job.pk}/"))
    shown = json.loads(re.findall(r'<script id="live-seed" type="application/json">(.*?)</script>', page, re.S)[0])
    line, band = (shown[kind]["reward/mean"] for kind in ("series", "bands"))
    assert line[-1] == [num_steps, 0.73] and shown["tiles"]["reward"] == "0.73"
    assert '<b data-last="reward/mean">0.73</b>' in page
    assert len(line) <= MAX_POINTS and sum(shown["counts"]["reward/mean"]) == num_steps
    steps = [step for step, _ in line]
    assert steps == sorted(steps) and {min(low for _, low, _ in band), max(high for *_, high in band)} == {0.0, 1.0}


@pytest.mark.long
def test_the_timeline_is_end_to_end_and_holds_its_marks(world: World) -> None:
    job = seed.finished(world, steps=56)
    line = timeline_of(list(job.events.order_by("seq")), now=datetime.now(UTC))
    assert [each.state for each in line.stretches] == ["queued", "starting", "running", "stopping", "succeeded"]
    assert sum(each.width for each in line.drawn) == pytest.approx(100)
    for one, next_one in zip(line.drawn, line.drawn[1:], strict=False):
        assert one.x + one.width == pytest.approx(next_one.x)
        assert one.since + one.lasted == next_one.since
    assert {mark.kind for mark in line.marks} == {"fault", "checkpoint", "evaluation"}


def test_what_the_curl_buttons_copy_are_real_addresses(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=2)
    paths = [*(reverse(tab.page, args=[job.pk]) for tab in TABS), "/jobs/", "/help/"]
    pages = "".join(text_of(owner.get(path)) for path in paths)
    copied = re.findall(r"https?://[^\s'&\\<]+/api/v1[^\s'&\\<\"?]*", unescape(pages))
    assert len(copied) > 10
    for address in set(copied):
        resolve(urlsplit(address).path)
