"""Evaluations of checkpoints: results with errors, compared with the previous result."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from backend.checkpoints.models import Checkpoint, CheckpointEvaluation, CheckpointState
from backend.jobs.models import Job
from backend.pages.evaluations.compared import Compared, compared
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World

NOW = datetime.now(UTC)


def checkpoint_of(job: Job, step: int) -> Checkpoint:
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=f"file:///nowhere/{job.pk}/{step}", manifest_sha256="0" * 64,
        num_bytes=3, created_at=NOW, state=CheckpointState.COMPLETE, verified_at=NOW,
    )  # fmt: skip


def evaluation(world: World, of: Checkpoint, **changes: object) -> Job:
    spec = {"training": {"steps": 0}, "evaluation": {"prompts": 256}, "resources": {"trainer_devices": 0}}
    return seed.submitted(world, start_from=of.pk, **spec | changes)  # type: ignore[arg-type]  # a spec's parts


def measured(world: World, of: Checkpoint, reward: float, *, minutes: int = 0, **changes: object) -> Compared:
    job = evaluation(world, of, **changes)
    CheckpointEvaluation.objects.create(
        job=job, checkpoint=of, at=NOW + timedelta(minutes=minutes), environment=job.spec["environment"]["name"],
        num_prompts=256, reward_mean=reward, reward_std=0.4, reward_error=0.025, length_mean=24.0,
    )  # fmt: skip
    [found] = compared(list(CheckpointEvaluation.objects.filter(job=job).select_related("job", "checkpoint")))
    return found


@pytest.fixture
def trained(world: World) -> Job:
    """A run that measured 0.27 before its first step."""
    return seed.running(world, steps_done=2, name="Trained", evaluation={"prompts": 256})


def test_result_has_error_and_previous_result(world: World, trained: Job) -> None:
    first = measured(world, checkpoint_of(trained, 40), 0.60)
    assert first.error == 0.025
    assert first.before and (first.before.label, first.before.mean) == ("before training", seed.HELD_OUT_BEFORE)
    assert first.is_clear
    second = measured(world, checkpoint_of(trained, 80), 0.62)
    assert second.before and (second.before.label, second.before.mean) == ("step 40", 0.60)
    assert second.change == pytest.approx(0.02) and not second.is_clear


def test_run_from_a_checkpoint_is_compared_with_its_own_start(world: World, trained: Job) -> None:
    trained.attempts.update(resume_step=30)
    checkpoint = checkpoint_of(trained, 40)
    assert measured(world, checkpoint, 0.60).before is None, "step 30 was not evaluated"
    seed.evaluated(trained, version=30, reward=0.5, at=NOW)
    before = measured(world, checkpoint, 0.60).before
    assert before and (before.label, before.mean) == ("before training", 0.5)


def test_what_asked_something_else_is_not_laid_beside_it(world: World, trained: Job) -> None:
    measured(world, checkpoint_of(trained, 40), 0.60)
    other = {"name": "running_sums", "params": {"median_terms": 3}}
    assert measured(world, checkpoint_of(trained, 80), 0.9, environment=other).before is None
    assert measured(world, checkpoint_of(trained, 90), 0.9, training={"steps": 0, "seed": 99}).before is None
    greedy = {"prompts": 256, "temperature": 0}
    assert measured(world, checkpoint_of(trained, 100), 0.9, evaluation=greedy).before is None
    several = {"prompts": 256, "samples": 4, "temperature": 1.0}
    assert measured(world, checkpoint_of(trained, 110), 0.9, evaluation=several).before is not None


def test_the_page_lists_results_and_what_goes_on(world: World, trained: Job, owner: Client, outsider: Client) -> None:
    assert "No evaluations yet" in text_of(owner.get("/evaluations/"))
    checkpoint = checkpoint_of(trained, 40)
    measured(world, checkpoint, 0.60)
    evaluation(world, checkpoint, name="Goes on")
    Job.objects.exclude(name__in=("Trained", "Goes on")).update(name="Measures")
    page = text_of(owner.get("/evaluations/"))
    assert "<b>0.60</b> ± 0.025" in page and "since before training, 0.27" in page
    assert ">Goes on</a>" in page and "0 of 256 prompts" in page
    assert f'href="/jobs/{trained.pk}/checkpoints/#{checkpoint.pk}"' in page
    other = seed.running(world, steps_done=1, name="Another")
    assert "0.60" not in text_of(owner.get(f"/evaluations/?job={other.pk}&part"))
    assert "0.60" not in text_of(outsider.get(f"/evaluations/?job={trained.pk}"))
