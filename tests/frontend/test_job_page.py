"""One job's page as a client without scripts sees it, and what its scripts pull."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.urls import resolve

from backend.pages.charts import OF_A_TEACHER, charts_of
from backend.pages.snapshot import snapshot_of
from backend.pages.timeline import timeline_of
from backend.telemetry.drawing import MAX_POINTS
from backend.telemetry.models import MetricPoint, MetricSeries
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World


def test_a_jobs_page_is_useful_without_scripts(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get(f"/jobs/{seed.finished(world, steps=56).pk}/")))
    numbers = (">56</span>", "0.27", "0.78", "+0.51")
    for expected in (*numbers, "succeeded", "Checkpoint saved", "reward/mean", "What the model writes"):
        assert expected in page
    assert page.count('<article class="sample"') == seed.SAMPLES_A_STEP + 1, "the newest step's, and the template"


def test_rewards_that_are_not_trusted_are_told_beside_the_reward(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    assert "not trusted" not in text_of(owner.get(f"/jobs/{job.pk}/"))
    seed.trained(world, job, 6, untrusted=0.125)
    assert "12.5 % not trusted" in text_of(owner.get(f"/jobs/{job.pk}/"))
    assert owner.get(f"/jobs/{job.pk}/live?after=0").json()["series"]["reward/untrusted"][-1] == [6, 0.125]


def test_the_distance_to_a_teacher_is_drawn_for_the_job_that_has_one(world: World, owner: Client) -> None:
    title, key = "Distance to the teacher", "train/teacher_kl"
    alone = seed.running(world, steps_done=2)
    assert title not in text_of(owner.get(f"/jobs/{alone.pk}/"))
    taught = seed.running(world, steps_done=3, algorithm={"teacher": {"source": "demo"}})
    page = owner.get(f"/jobs/{taught.pk}/")
    assert title in text_of(page) and f"names={key}" in unescape(text_of(page))
    assert len(snapshot_of(taught).series[key]) == 3 and not snapshot_of(alone).series.get(key)
    del alone.spec["algorithm"]["teacher"]  # as of a job that was taken in before there were teachers
    assert OF_A_TEACHER not in charts_of(alone) and OF_A_TEACHER in charts_of(taught)


def test_a_failed_job_says_what_to_do(world: World, owner: Client) -> None:
    page = unescape(text_of(owner.get(f"/jobs/{seed.failed(world).pk}/")))
    assert "Failed: config" in page
    assert "from 2 to max_terms (64), got 80.0" in page
    assert "Change the spec as the message says" in page


def test_a_failed_job_shows_what_its_parts_said_last(world: World, owner: Client) -> None:
    job = seed.failed_with_evidence(world, at=datetime.now(UTC) - timedelta(hours=1))
    page = " ".join(unescape(text_of(owner.get(f"/jobs/{job.pk}/"))).split())
    assert "Failed: user code" in page and "Mend the environment's code" in page
    assert page.index("<figcaption>environment") < page.index("the grader raised for prompt 4183")
    assert page.index("<figcaption>trainer") < page.index("no batch for 60 s; giving up")
    assert "step 12" in page and "environment: it dies" in page and "fact 5" in page


def test_cancelling_without_scripts(world: World, owner: Client) -> None:
    job = seed.submitted(world)
    assert "This cannot be undone" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))
    page = text_of(owner.post(f"/jobs/{job.pk}/cancel", follow=True))
    assert "The job is cancelled." in page
    assert "nothing left to cancel" in text_of(owner.get(f"/jobs/{job.pk}/cancel"))


def test_cancelling_what_has_ended_is_told_in_words(world: World, owner: Client) -> None:
    page = text_of(owner.post(f"/jobs/{seed.finished(world, steps=2).pk}/cancel", follow=True))
    assert "A job that has succeeded cannot be cancelled." in page


def test_the_pull_gives_what_is_new_and_only_that(world: World, owner: Client) -> None:
    job = seed.running(world, steps_done=5)
    cursor = owner.get(f"/jobs/{job.pk}/live?after=0").json()["cursor"]
    seed.trained(world, job, 6, reward=0.5)
    news = owner.get(f"/jobs/{job.pk}/live?after={cursor}").json()
    assert news["series"]["reward/mean"] == [[6, 0.5]]
    assert {each["step"] for each in news["trajectories"]} == {6}
    assert news["job"]["step"] == 6
    assert owner.get(f"/jobs/{job.pk}/live?after={news['cursor']}").json()["series"] == {}


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
    points = dict(snapshot_of(job).series["reward/mean"])
    assert len(points) <= MAX_POINTS
    assert points[2_345] == 9.0
    assert points[4_000] == -3.0, "the later attempt's"


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
    pages = text_of(owner.get(f"/jobs/{job.pk}/")) + text_of(owner.get("/jobs/")) + text_of(owner.get("/help/"))
    copied = re.findall(r"https?://[^\s'&\\<]+/api/v1[^\s'&\\<\"?]*", unescape(pages))
    assert len(copied) > 10
    for address in set(copied):
        resolve(urlsplit(address).path)
