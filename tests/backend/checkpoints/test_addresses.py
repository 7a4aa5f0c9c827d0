"""An attempt can record no other checkpoint than its own, in its own place of the store."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest
from django.conf import LazySettings
from django.test import Client

from backend.checkpoints.files import Elsewhere, files_of
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.selectors import newest_checkpoint
from backend.checkpoints.verification import verify_due
from backend.jobs.attempts.tokens import token_of
from backend.jobs.models import Job, JobAttempt
from engine.live.process.settings import Settings
from tests.backend.checkpoints.conftest import Save, folder_of, state_of

pytestmark = pytest.mark.django_db

BUCKET: Final = "s3://ours/site"
OWN: Final = "jobs/{job}/attempt-1-fence-1/checkpoints/step-000005"
FOREIGN: Final = (
    "file:///etc/passwd",
    "file:///jobs/{job}/attempt-1-fence-1/checkpoints/step-000005",
    "s3://other/x",
    "s3://other/" + OWN,
    "s3://other/site/" + OWN,
    "s3://ours/" + OWN,
    "s3://ours/site2/" + OWN,
    "s3://OURS/site/" + OWN,
    "S3://ours/site/" + OWN,
    "s3://ours:443/site/" + OWN,
    "s3://key@ours/site/" + OWN,
    "s3://ours/site//" + OWN,
    "s3://ours/site/x/../" + OWN,
    "s3://ours/site/%6aobs/{job}/attempt-1-fence-1/checkpoints/step-000005",
    "file://localhost{root}/" + OWN,
    "FILE://{root}/" + OWN,
    "file:{root}/" + OWN,
    *(
        root + "/" + key
        for root in (BUCKET, "file://{root}")
        for key in (
            "",
            "jobs",
            "jobs/{job}",
            "jobs/{job}/",
            "jobs/{job}/attempt-1-fence-1",
            "jobs/{job}/attempt-1-fence-1/checkpoints",
            "jobs/{job}/attempt-1-fence-1/checkpoints/",
            "jobs/{job}/attempt-1-fence-1/checkpoints/step-000004",
            "jobs/{job}/attempt-1-fence-1/checkpoints/step-5",
            "jobs/{job}/attempt-1-fence-1/checkpoints/STEP-000005",
            "jobs/{job}/attempt-1-fence-1/spool/step-000005",
            "jobs/{job}/attempt-2-fence-1/checkpoints/step-000005",
            "jobs/{job}/attempt-1-fence-1/x/checkpoints/step-000005",
            "jobs/{job}/attempt-1-fence-/checkpoints/step-000005",
            "jobs/{job}/attempt-1-fence-1/../../{other}/attempt-1-fence-1/checkpoints/step-000005",
            "jobs/{job}/attempt-1-fence-1%2F../checkpoints/step-000005",
            "jobs/{job}/%2e%2e/{other}/attempt-1-fence-1/checkpoints/step-000005",
            "jobs/{other}/attempt-1-fence-1/checkpoints/step-000005",
            "jobs/{job}x/attempt-1-fence-1/checkpoints/step-000005",
            OWN + "/",
            OWN + "/.",
            OWN + "/..",
            OWN + "/model.safetensors",
            OWN + "%00",
            OWN + "%2f..%2fstep-000004",
            OWN + "?versionId=1",
            OWN + "#a",
            OWN + " ",
        )
    ),
)

Report = Callable[[str], int]


@pytest.fixture
def report(job: Job, attempt: JobAttempt, make_job: Callable[..., Job], client: Client, store_dir: Path) -> Report:
    """Sends the fact with the attempt's own token; returns the status."""
    other = make_job().pk

    def send(address: str) -> int:
        uri = address.format(job=job.pk, other=other, root=store_dir)
        saved = {"type": "checkpoint_saved", "step": 5, "version": 5, "uri": uri, "num_bytes": 1}
        fact = {"seq": 1, "at": "2026-01-01T00:00:00Z", "body": saved | {"manifest_sha256": "a" * 64}}
        batch = {"attempt": attempt.n, "fence": attempt.fence, "facts": [fact]}
        headers = {"Authorization": f"Bearer {token_of(attempt)}"}
        return client.post(
            "/internal/engine/facts", batch, content_type="application/json", headers=headers
        ).status_code

    return send


@pytest.fixture
def bucket(settings: LazySettings, store_dir: Path) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_url=BUCKET + "/")


@pytest.mark.parametrize("address", FOREIGN)
def test_foreign_address_is_refused(report: Report, bucket: None, address: str) -> None:
    assert report(address) == 422
    assert not Checkpoint.objects.exists()


@pytest.mark.parametrize("address", [f"{BUCKET}/{OWN}", "file://{root}/" + OWN])
def test_own_address_is_recorded(report: Report, bucket: None, address: str) -> None:
    assert report(address) == 200
    assert Checkpoint.objects.count() == 1


def test_folder_of_the_engine_is_the_own_address(report: Report, attempt: JobAttempt, store_dir: Path) -> None:
    engine = Settings.from_environment({"LAMINAR_STORE_DIR": str(store_dir)})
    folder = engine.attempt_folder(job=attempt.job_id, attempt=attempt.n, fence=attempt.fence) / "checkpoints"
    assert report((folder / "step-000005").resolve().as_uri()) == 200


def test_bucket_address_is_refused_without_a_bucket(report: Report, store_dir: Path) -> None:
    assert report(f"{BUCKET}/{OWN}") == 422


def test_refused_address_keeps_the_rest_of_its_batch_out(report: Report, attempt: JobAttempt) -> None:
    assert report("file:///etc/passwd") == 422
    attempt.refresh_from_db()
    assert attempt.acked_seq == 0


@pytest.mark.parametrize("linked", ["", "jobs"])
@pytest.mark.parametrize("is_resolved", [False, True])
def test_store_behind_a_link_accepts_both_spellings(
    report: Report, settings: LazySettings, tmp_path: Path, linked: str, is_resolved: bool
) -> None:
    """The engine follows links on the way to the folder of jobs, and reports the folder behind them."""
    store, disk = tmp_path / "mounted", tmp_path / "disk"
    jobs = disk if linked else disk / "jobs"
    jobs.mkdir(parents=True)
    if linked:
        store.mkdir()
    (store / linked).symlink_to(disk)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=store)
    address = f"file://{jobs if is_resolved else store / 'jobs'}/{OWN.removeprefix('jobs/')}"
    assert report(address) == 200
    assert files_of(Checkpoint.objects.get())


def test_folder_replaced_by_a_link_is_corrupt(
    save: Save, job: Job, make_job: Callable[..., Job], now: datetime
) -> None:
    """An attempt can write in its own folder, links too."""
    theirs, mine = save(5, of=make_job()), save(5, is_verified=False)
    folder_of(mine).rename(folder_of(mine).with_name("aside"))
    folder_of(mine).symlink_to(folder_of(theirs))
    assert verify_due(now=now) == 1
    assert state_of(mine) == "corrupt" and Checkpoint.objects.get(pk=mine.pk).next_check_at is None
    assert newest_checkpoint(job) is None, "no attempt resumes from it"
    with pytest.raises(Elsewhere):
        files_of(mine)
