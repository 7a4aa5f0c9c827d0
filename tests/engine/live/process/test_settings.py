"""A job's paths stay in its own folder, and a checkpoint must be one that a job wrote; links and dots are resolved."""

from pathlib import Path

import pytest

from engine.live.checkpoints.resuming import is_of_job, refuse_outside
from engine.live.process.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "store" / "jobs" / "job_b" / "attempt-1-fence-1").mkdir(parents=True)
    return Settings.from_environment({"LAMINAR_STORE_DIR": str(tmp_path / "store")})


@pytest.mark.parametrize("job", ["../x", "..", ".", "a/b", "/etc", "", "a\0b", "job_a/../job_b"])
def test_job_name_with_a_path_is_refused(settings: Settings, job: str) -> None:
    with pytest.raises(ValueError, match="job: must be letters"):
        settings.attempt_folder(job=job, attempt=1, fence=1)


def test_link_to_another_jobs_folder_is_refused(settings: Settings) -> None:
    folder = settings.attempt_folder(job="job_a", attempt=1, fence=1)
    assert folder == settings.jobs / "job_a" / "attempt-1-fence-1"
    (settings.jobs / "job_a").symlink_to("job_b")
    with pytest.raises(ValueError, match="a folder of its own"):
        settings.attempt_folder(job="job_a", attempt=1, fence=1)
    (settings.jobs / "job_c").mkdir()
    (settings.jobs / "job_c" / "attempt-1-fence-1").symlink_to(settings.jobs / "job_b" / "attempt-1-fence-1")
    with pytest.raises(ValueError, match="a folder of its own"):
        settings.attempt_folder(job="job_c", attempt=1, fence=1)


def test_store_behind_a_symlink_is_accepted(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(settings.store)
    folder = Settings.from_environment({"LAMINAR_STORE_DIR": str(tmp_path / "link")}).attempt_folder(
        job="job_b", attempt=1, fence=1
    )
    assert folder.is_dir()


def test_checkpoint_of_the_same_job_is_recognized(settings: Settings) -> None:
    own = settings.attempt_folder(job="job_b", attempt=2, fence=2).parent
    step = own / "attempt-1-fence-1" / "checkpoints" / "step-000005"
    key = "s3://bucket/some/prefix/jobs/{}/attempt-1-fence-1/checkpoints/step-5"
    assert all(is_of_job(uri, own) for uri in (str(step), step.as_uri(), key.format("job_b")))
    other = str(step).replace("job_b", "job_bc")
    assert not any(is_of_job(uri, own) for uri in (other, f"{own}/../job_c/step", key.format("job_bc")))


def test_job_resumes_only_from_a_checkpoint_of_a_job(settings: Settings, tmp_path: Path) -> None:
    step = settings.jobs / "job_b" / "attempt-1-fence-1" / "checkpoints" / "step-000005"
    step.mkdir(parents=True)
    (settings.store / "models" / "secret").mkdir(parents=True)
    (settings.jobs / "job_b" / "out").symlink_to(settings.store / "models" / "secret")
    for uri in (str(step), step.as_uri(), "s3://bucket/some/prefix/jobs/job_b/attempt-1-fence-1/checkpoints/step-5"):
        refuse_outside(uri, settings.jobs)
    for uri in (
        (settings.store / "models" / "secret").as_uri(),
        "/etc",
        "file:///",
        f"{settings.jobs}/job_b/../../models/secret",
        f"file://{settings.jobs}/job_b/%2e%2e/%2e%2e/models/secret",
        (settings.jobs / "job_b" / "out").as_uri(),
        str(settings.jobs),
        "s3://bucket/prefix/models/secret",
        "s3://bucket/jobs/job_b/../../models/secret",
        "s3://bucket/jobs/",
    ):
        with pytest.raises(ValueError, match="resume_from: must be a checkpoint that a job wrote"):
            refuse_outside(uri, settings.jobs)
