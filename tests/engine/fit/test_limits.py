"""Limits of time grow with what a job reads, computes and writes."""

from engine.fit.durations.limits import longest_pause_s, longest_start_s, longest_step_s
from engine.fit.durations.step import DEVICES, least_training_s, step_work
from engine.fit.known_models import known_shape
from tests.engine.fit.shapes_of_models import job

SMALL, LARGE = known_shape("Qwen3-0.6B"), known_shape("Qwen3-32B")


def test_larger_model_may_start_step_and_pause_slower() -> None:
    for longest_s in (longest_start_s, longest_step_s, longest_pause_s):
        assert longest_s(job(), LARGE) > 10 * longest_s(job(), SMALL) > 0


def test_every_model_of_a_job_is_read_when_it_begins() -> None:
    plain, rewarded = longest_start_s(job(), LARGE), longest_start_s(job(algorithm={"kl": {"coefficient": 0.1}}), LARGE)
    assert rewarded > plain
    taught = job(algorithm={"teacher": {"source": "large"}})
    assert longest_start_s(taught, SMALL, teacher=LARGE) > longest_start_s(job(), SMALL)
    assert longest_start_s(job(training={"steps": 0}), LARGE) < plain, "an evaluation trains nothing and saves nothing"


def test_an_evaluation_has_no_step_to_end() -> None:
    assert longest_pause_s(job(training={"steps": 0}), LARGE) == 0.0


def test_the_longest_step_is_longer_than_any_known_device_takes() -> None:
    work = step_work(job(), LARGE)
    assert all(least_training_s(work, device, num_devices=1) < longest_step_s(job(), LARGE) for device in DEVICES)
