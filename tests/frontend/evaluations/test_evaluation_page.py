"""Evaluations: visible to all roles, started only by members, and followed live."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from playwright.sync_api import expect

from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import Job
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.validation import validate_job
from backend.pages.job.making import FORM
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch
from engine.spec.job import JobSpec
from tests.frontend.seed import World, finished, make_world

ONLY_MEMBERS = "Ask a team member to start an evaluation"
STEPS, PROMPTS = 40, 256
READY = {"type": "pipeline_ready", "num_replicas": 1, "num_parameters": 262_144}
EVALUATING = {"type": "phase_changed", "phase": "evaluating"}
EVALUATED = {"type": "evaluated", "version": STEPS, "num_prompts": PROMPTS, "reward_mean": 0.75, "reward_std": 0.25}
EVALUATED |= {"length_mean": 22.5, "reward_error": 0.016, "pass_rate": 0.8, "pass_error": 0.025}
FINISHED = {"type": "run_finished", "outcome": "succeeded"}


def answered(n: int) -> dict[str, Any]:
    return {"type": "prompts_answered", "version": STEPS, "num_answered": n, "num_prompts": PROMPTS}


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.status_code
    text: str = answer.content.decode()
    return text


def checkpoint_of(job: Job) -> Checkpoint:
    now = datetime.now(UTC)
    return Checkpoint.objects.create(
        job=job, attempt=1, step=STEPS, version=STEPS, uri=f"file:///store/{job.pk}", manifest_sha256="0" * 64,
        num_bytes=1_048_576, created_at=now, verified_at=now, state=CheckpointState.COMPLETE,
    )  # fmt: skip


@pytest.fixture
def checkpoint(world: World) -> Checkpoint:
    return checkpoint_of(finished(world, steps=STEPS))


def button_of(browser: Client, checkpoint: Checkpoint) -> str:
    """The token of the evaluation form, which the job's page links to."""
    assert f'href="/checkpoints/{checkpoint.pk}/evaluate"' in text_of(checkpoints_page(browser, checkpoint))
    page = text_of(browser.get(f"/checkpoints/{checkpoint.pk}/evaluate"))
    found = re.search(rf'action="/checkpoints/{checkpoint.pk}/evaluate">.*?name="token" value="([^"]+)"', page, re.S)
    assert found, "there is no button"
    return found[1]


def checkpoints_page(browser: Client, checkpoint: Checkpoint) -> Any:
    return browser.get(f"/jobs/{checkpoint.job_id}/checkpoints/")


def press(browser: Client, checkpoint: Checkpoint, token: str, **typed: str) -> Any:
    body = f"token={token}&{urlencode(typed)}"
    return browser.post(f"/checkpoints/{checkpoint.pk}/evaluate", body, FORM)


def evaluation_of(browser: Client, checkpoint: Checkpoint) -> Job:
    """Starts an evaluation from the page."""
    answer = press(browser, checkpoint, button_of(browser, checkpoint))
    assert answer.status_code == 302, answer.status_code
    return Job.objects.get(start_from=checkpoint.pk, pk=answer.headers["Location"].split("/")[2])


class Engine:
    """The engine's facts of a started job."""

    def __init__(self, job: Job) -> None:
        validate_job(job.pk, now=datetime.now(UTC))
        assert schedule_pool(job.pool_id, now=datetime.now(UTC)) == 1
        self.attempt, self.sent = job.attempts.get(), 0

    def say(self, *bodies: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        facts = [{"seq": self.sent + 1 + at, "at": now, "body": body} for at, body in enumerate(bodies)]
        batch = {"attempt": self.attempt.n, "fence": self.attempt.fence, "facts": facts}
        ingest_facts(self.attempt, FactBatch.model_validate(batch), now=now)
        self.sent += len(bodies)


@pytest.mark.django_db
class TestWhoMay:
    @pytest.mark.long
    def test_a_member_starts_one_from_the_page_of_the_job(
        self, owner: Client, checkpoint: Checkpoint, world: World
    ) -> None:
        job = evaluation_of(owner, checkpoint)
        assert (job.steps, job.step, job.devices, job.created_by) == (0, STEPS, 1, world.owner)
        page = text_of(owner.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
        assert f'<a href="/jobs/{job.pk}/">{job.state}</a> 0 of {PROMPTS} prompts' in page
        assert ONLY_MEMBERS not in page

    @pytest.mark.long
    def test_one_showing_of_the_button_makes_one_evaluation(self, owner: Client, checkpoint: Checkpoint) -> None:
        token = button_of(owner, checkpoint)
        first, again = (press(owner, checkpoint, token) for _ in range(2))
        assert first.headers["Location"] == again.headers["Location"]
        assert Job.objects.filter(start_from=checkpoint.pk).count() == 1

    @pytest.mark.long
    def test_viewer_sees_results_and_reason_for_missing_button(
        self, owner: Client, viewer: Client, checkpoint: Checkpoint
    ) -> None:
        job = evaluation_of(owner, checkpoint)
        Engine(job).say(READY, answered(PROMPTS), EVALUATED, FINISHED)
        page = text_of(viewer.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
        assert ONLY_MEMBERS in page and "/evaluate" not in page
        result = f'<a href="/jobs/{job.pk}/">0.75</a> ± 0.016, pass@1 0.80 ± 0.025'
        assert f"{result} over {PROMPTS} prompts of running_sums" in page
        assert f'value="{PROMPTS}" data-progress' in text_of(viewer.get(f"/jobs/{job.pk}/"))

    def test_a_viewer_who_sends_the_form_all_the_same_is_refused(
        self, owner: Client, viewer: Client, checkpoint: Checkpoint
    ) -> None:
        token = button_of(owner, checkpoint)
        assert press(viewer, checkpoint, token).status_code == 403
        assert not Job.objects.filter(start_from=checkpoint.pk).exists()

    def test_form_begins_with_what_the_job_asked(self, owner: Client, checkpoint: Checkpoint) -> None:
        page = text_of(owner.get(f"/checkpoints/{checkpoint.pk}/evaluate"))
        values = dict(re.findall(r'<input id="evaluate-(\w+)" name="\w+" value="([^"]*)"', page))
        asked = {"prompts": str(PROMPTS), "samples": "1", "temperature": "1", "top_p": "1", "replicas": "1"}
        assert values == asked

    def test_changed_settings_are_the_evaluations(self, owner: Client, checkpoint: Checkpoint) -> None:
        typed = {"prompts": "1 024", "samples": "4", "temperature": "0.6", "top_p": "0.95", "replicas": "2"}
        assert press(owner, checkpoint, button_of(owner, checkpoint), **typed).status_code == 302
        spec = JobSpec.model_validate(Job.objects.get(start_from=checkpoint.pk).spec)
        asked = spec.evaluation
        assert (asked.prompts, asked.samples, asked.temperature, asked.top_p) == (1024, 4, 0.6, 0.95)
        assert spec.rollout.replicas == 2

    @pytest.mark.parametrize(
        ("name", "typed", "told"),
        [
            ("temperature", "0,5", "0,5 is ambiguous: enter 0.5 or 5"),
            ("prompts", "many", "Prompts must be a whole number; got many."),
            ("top_p", "1.5", "Top p must be at most 1; got 1.5."),
            ("samples", "257", "Samples must be at most 256; got 257."),
        ],
    )
    def test_what_cannot_be_asked_is_told_beside_its_field(
        self, owner: Client, checkpoint: Checkpoint, name: str, typed: str, told: str
    ) -> None:
        answer = press(owner, checkpoint, button_of(owner, checkpoint), **{name: typed})
        page = answer.content.decode()
        assert answer.status_code == 422 and not Job.objects.filter(start_from=checkpoint.pk).exists()
        assert re.search(rf'value="{typed}".*?id="evaluate-{name}-error" dir="auto">[^<]*{re.escape(told)}', page)

    def test_rule_over_two_settings_is_told_beside_its_field(self, owner: Client, checkpoint: Checkpoint) -> None:
        typed = {"prompts": "65536", "samples": "5"}
        answer = press(owner, checkpoint, button_of(owner, checkpoint), **typed)
        told = r'id="evaluate-samples-error" dir="auto">[^<]*at most 4 with 65,536 prompts'
        assert answer.status_code == 422 and re.search(told, answer.content.decode())

    def test_a_form_that_no_browser_sends_so_makes_nothing(self, owner: Client, checkpoint: Checkpoint) -> None:
        """A multipart body is refused: its hash would differ each time."""
        answer = owner.post(f"/checkpoints/{checkpoint.pk}/evaluate", {"token": button_of(owner, checkpoint)})
        assert answer.status_code == 415 and not Job.objects.filter(start_from=checkpoint.pk).exists()

    @pytest.mark.long_except("short")
    @pytest.mark.parametrize("token", ["", "short", "%22%3E" * 10])
    def test_a_form_without_its_token_makes_nothing(self, owner: Client, checkpoint: Checkpoint, token: str) -> None:
        assert press(owner, checkpoint, token).status_code == 302
        assert not Job.objects.filter(start_from=checkpoint.pk).exists()

    def test_a_checkpoint_of_another_team_does_not_exist(self, outsider: Client, checkpoint: Checkpoint) -> None:
        assert press(outsider, checkpoint, "a" * 24).status_code == 404

    def test_damaged_checkpoint_cannot_be_evaluated(self, owner: Client, checkpoint: Checkpoint) -> None:
        token = button_of(owner, checkpoint)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state=CheckpointState.CORRUPT)
        assert "/evaluate" not in text_of(owner.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
        assert "The files of this checkpoint are damaged" in text_of(
            owner.get(f"/checkpoints/{checkpoint.pk}/evaluate")
        )
        assert press(owner, checkpoint, token).status_code == 302
        assert "notice error" in text_of(owner.get(f"/jobs/{checkpoint.job_id}/checkpoints/"))
        assert not Job.objects.filter(start_from=checkpoint.pk).exists()

    def test_evaluation_links_back_and_needs_weights_to_rerun(self, owner: Client, checkpoint: Checkpoint) -> None:
        """The form for a new job starts from the model, not from a checkpoint."""
        page = text_of(owner.get(f"/jobs/{evaluation_of(owner, checkpoint).pk}/"))
        assert f'href="/jobs/{checkpoint.job_id}/checkpoints/#{checkpoint.pk}"' in page and "Run again" not in page


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("width", [1280, 390])
def test_an_open_page_follows_an_evaluation_to_its_result(
    visit: Callable[..., Any], width: int, tmp_path: Path
) -> None:
    world = make_world()
    client = Client()
    client.force_login(world.owner)
    checkpoint = checkpoint_of(finished(world, steps=STEPS))
    job = evaluation_of(client, checkpoint)
    engine = Engine(job)
    engine.say(READY, EVALUATING, answered(31))
    visitor = visit(world.owner, width=width)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-value=done]").first).to_have_text("31")
    engine.say(answered(112))
    expect(page.locator("[data-value=done]").first).to_have_text("112", timeout=15_000)
    expect(page.locator("progress")).to_have_js_property("value", 112)
    expect(page).to_have_title(re.compile(r"^112/256 · "))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"running-{width}.png", full_page=True)
    engine.say(answered(PROMPTS), EVALUATED, FINISHED)
    expect(page.locator("[data-value='held_out.first']")).to_have_text("0.75", timeout=15_000)
    expect(page.locator("progress")).to_have_js_property("value", PROMPTS)
    expect(page).to_have_title(re.compile(r"^succeeded · "))
    page.screenshot(path=tmp_path / f"finished-{width}.png", full_page=True)
    page = visitor.open(f"/jobs/{checkpoint.job_id}/checkpoints/#{checkpoint.pk}")
    expect(page.locator(".checkpoints")).to_contain_text("0.75 ± 0.016, pass@1 0.80 ± 0.025 over 256 prompts")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"checkpoints-{width}.png", full_page=True)
    assert visitor.complaints == []
