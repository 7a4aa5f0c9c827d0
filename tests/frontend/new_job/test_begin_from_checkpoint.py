"""A new job from a checkpoint's weights, and a rerun from the same starting point."""

from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import expect

from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import Job
from backend.jobs.submitting.templates import gallery
from backend.pages.job.panels.charts import HELD_OUT
from backend.telemetry.models import MetricPoint
from tests.frontend.evaluations.test_evaluation_page import STEPS, checkpoint_of
from tests.frontend.html_reading import text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World, finished, make_world

REMARK = "is no longer available"


@pytest.fixture
def checkpoint(world: World) -> Checkpoint:
    return checkpoint_of(finished(world, steps=STEPS, name="Earlier"))


def shown(client: Client, asked: str) -> str:
    return unescape(text_of(client.get(f"/jobs/new?{asked}")))


def box(checkpoint: Checkpoint, *, ticked: bool) -> str:
    return f'name="start_from" value="{checkpoint.pk}"{" checked" if ticked else ""}>'


@pytest.mark.long
def test_checkpoint_opens_form_with_doubled_steps(owner: Client, checkpoint: Checkpoint) -> None:
    assert f"/jobs/new?checkpoint={checkpoint.pk}" in text_of(owner.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
    page = shown(owner, f"checkpoint={checkpoint.pk}")
    assert box(checkpoint, ticked=True) in page and f'value="Earlier (from step {STEPS})"' in page
    assert f'name="training.steps" value="{2 * STEPS}"' in page
    assert f'"start_from": "{checkpoint.pk}"' in page, "and so does the same as curl"


@pytest.mark.long
def test_submitted_and_rerun_jobs_start_from_checkpoint(world: World, owner: Client, checkpoint: Checkpoint) -> None:
    form = filled(world, start_from=checkpoint.pk, offered=checkpoint.pk, training__steps=str(2 * STEPS))
    assert send(owner, form).status_code == 302
    job = Job.objects.get(start_from=checkpoint.pk)
    assert box(checkpoint, ticked=True) in shown(owner, f"from={job.pk}")


def test_without_the_tick_it_begins_with_the_model(world: World, owner: Client, checkpoint: Checkpoint) -> None:
    assert send(owner, filled(world, offered=checkpoint.pk)).status_code == 302
    assert Job.objects.exclude(pk=checkpoint.job_id).get().start_from == ""


@pytest.mark.long_except("True")
@pytest.mark.parametrize("ticked", [True, False])
def test_a_refused_form_keeps_the_choice(world: World, owner: Client, checkpoint: Checkpoint, ticked: bool) -> None:
    choice = {"offered": checkpoint.pk} | ({"start_from": checkpoint.pk} if ticked else {})
    answer = send(owner, filled(world, name="", **choice))
    assert answer.status_code == 422 and box(checkpoint, ticked=ticked) in unescape(text_of(answer))


@pytest.mark.long
def test_too_few_steps_are_told_beside_the_steps(world: World, owner: Client, checkpoint: Checkpoint) -> None:
    form = filled(world, start_from=checkpoint.pk, offered=checkpoint.pk, training__steps=str(STEPS))
    page = unescape(text_of(send(owner, form)))
    assert "Fix 1 error" in page and f"more than {STEPS}, the step of the checkpoint" in page


def test_one_that_is_gone_is_said_before_and_refused_after(world: World, owner: Client, checkpoint: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=checkpoint.pk).update(state=CheckpointState.CORRUPT)
    page = shown(owner, f"checkpoint={checkpoint.pk}")
    assert REMARK in page and "start_from" not in page
    answer = send(owner, filled(world, start_from=checkpoint.pk, offered=checkpoint.pk))
    assert answer.status_code == 422 and "or the base model" in text_of(answer)
    assert Job.objects.count() == 1


@pytest.mark.parametrize("asked", ["ckpt_0", "x y", "%07", "ckpt_" + "0" * 20])
def test_what_is_no_checkpoint_is_only_remarked(owner: Client, asked: str, world: World) -> None:
    assert REMARK in shown(owner, f"checkpoint={asked}")


@pytest.mark.parametrize("sent", ["x y", "ckpt_0", "c" * 5_000])
def test_what_is_no_checkpoint_makes_no_job(world: World, owner: Client, sent: str) -> None:
    assert send(owner, filled(world, start_from=sent, offered=sent)).status_code == 422
    assert not Job.objects.exists()


def test_another_teams_checkpoint_does_not_exist(outsider: Client, world: World, checkpoint: Checkpoint) -> None:
    page = shown(outsider, f"checkpoint={checkpoint.pk}")
    assert "Earlier" not in page and checkpoint.pk not in page


@pytest.mark.long
def test_the_tick_is_part_of_the_curl(visit: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world()
    checkpoint = checkpoint_of(finished(world, steps=STEPS, name="Earlier"))
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/new?checkpoint={checkpoint.pk}")
    expect(page.locator("#curl")).to_contain_text(f'"start_from": "{checkpoint.pk}"')
    page.screenshot(path=tmp_path / "begin.png", full_page=True)
    page.get_by_label("weights and optimizer").uncheck()
    expect(page.locator("#curl")).not_to_contain_text("start_from")
    page.get_by_label("weights and optimizer").check()
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("heading", name="Earlier")).to_be_visible()
    assert Job.objects.filter(start_from=checkpoint.pk).count() == 1
    assert not visitor.complaints


@pytest.mark.long
def test_where_it_began_it_was_not_measured(visit: Callable[..., Any]) -> None:
    world = make_world()
    job = finished(world, steps=STEPS)
    MetricPoint.objects.filter(series__job=job, series__name=HELD_OUT, step=0).delete()
    visitor = visit(world.owner)
    told = visitor.page.request.get(f"/jobs/{job.pk}/").text()
    tile = visitor.open(f"/jobs/{job.pk}/").locator("[data-held-out]")
    expect(tile).to_contain_text("not measured before training")
    assert "not measured before training" in told and "the second" not in told
    assert tile.locator("[data-value='held_out.first']").inner_text() == "–"
    assert tile.locator("[data-value='held_out.last']").inner_text() != "–"


def test_gallery_offers_templates_and_own_newest_checkpoint(
    owner: Client, outsider: Client, checkpoint: Checkpoint
) -> None:
    page = shown(owner, "")
    for template in gallery():
        assert f'href="?template={template.name}"' in page and template.about in page
    assert f'href="?checkpoint={checkpoint.pk}"' in page
    theirs = shown(outsider, "")
    assert checkpoint.pk not in theirs and 'aria-disabled="true"><b>Start from a checkpoint' in theirs
