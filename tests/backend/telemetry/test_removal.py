"""Old logs and trajectories are removed in pieces, never of a running job, and readers get 410."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from backend.accounts.models import User
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from backend.store.folder import FolderStore
from backend.store.port import StoreUnavailable
from backend.telemetry import background, removal
from backend.telemetry.models import LogBatch, Removal, Trajectory, TrajectoryFile, UnarchivedTrajectory
from backend.telemetry.removal import remove_old_logs, remove_old_trajectories
from backend.telemetry.trajectories.archive import archive_trajectories
from tests.backend.conftest import NOW, Api, MakeJob
from tests.backend.telemetry.test_logs import tell
from tests.backend.telemetry.test_trajectories import Writer, sample

pytestmark = pytest.mark.django_db

KEEP = timedelta(days=90)
LATER = NOW + KEEP + timedelta(seconds=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """The store that the API reads, too."""
    store = FolderStore(tmp_path)
    monkeypatch.setattr("backend.telemetry.trajectories.api.store", lambda: store)
    return store


@pytest.fixture
def talked(make_job: MakeJob, store: FolderStore) -> Callable[..., Job]:
    """A job with log lines and trajectories, some of them archived."""

    def make(*, is_over: bool = True, num: int = 6) -> Job:
        job = make_job()
        for each in range(num):
            tell(job, "driver", ("info", f"line {each}"))
        writer = Writer(job, NOW)
        writer.write(1, *(sample(ordinal) for ordinal in range(num)))
        assert archive_trajectories(job.pk, store, now=NOW) == num
        writer.write(2, *(sample(ordinal) for ordinal in range(num)))
        if is_over:
            cancel_job(job.pk, actor="test", now=NOW)
        job.refresh_from_db()
        return job

    return make


def files(store: FolderStore, job: Job) -> list[str]:
    return [item.key for item in store.list(f"jobs/{job.pk}/trajectories/")]


def left(job: Job, store: FolderStore) -> tuple[int, int, int, int, int]:
    rows = (LogBatch, Trajectory, UnarchivedTrajectory, TrajectoryFile)
    logs, trajectories, unarchived, archived = (kind.objects.filter(job=job).count() for kind in rows)
    return logs, trajectories, unarchived, archived, len(files(store, job))


def remove_all(store: FolderStore, now: datetime = LATER) -> None:
    remove_old_logs(keep=KEEP, now=now)
    remove_old_trajectories(store, keep=KEEP, now=now)


def test_rows_and_files_of_an_old_job_are_removed(talked: Callable[..., Job], store: FolderStore) -> None:
    job = talked()
    assert left(job, store) == (6, 12, 6, 1, 1)
    remove_all(store)
    assert left(job, store) == (0, 0, 0, 0, 0)
    assert set(Removal.objects.values_list("kind", "is_done")) == {("logs", True), ("trajectories", True)}


def test_running_and_recent_jobs_keep_everything(talked: Callable[..., Job], store: FolderStore) -> None:
    waits, runs, lately = talked(is_over=False), talked(is_over=False), talked()
    Job.objects.filter(pk=runs.pk).update(created_at=NOW - timedelta(days=1_000))
    remove_all(store, NOW + KEEP)
    for job in (waits, runs, lately):
        assert left(job, store) == (6, 12, 6, 1, 1)
    remove_all(store, NOW + timedelta(days=10_000))
    assert left(waits, store) == left(runs, store) == (6, 12, 6, 1, 1)
    assert left(lately, store) == (0, 0, 0, 0, 0)


def test_each_call_removes_a_bounded_piece(
    talked: Callable[..., Job], store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [talked(), talked()]
    assert [remove_old_logs(keep=KEEP, now=LATER, limit=5) for _ in range(4)] == [5, 5, 2, 0]
    monkeypatch.setattr(removal, "FILES_A_CALL", 1)
    calls = [remove_old_trajectories(store, keep=KEEP, now=LATER, limit=7) for _ in range(8)]
    assert max(calls) <= 7 and sum(calls) == 24 and calls[-1] == 0
    assert [left(job, store) for job in jobs] == [(0, 0, 0, 0, 0)] * 2


def test_readers_get_410_from_the_first_piece_on(
    talked: Callable[..., Job], store: FolderStore, api: Api, alice: User
) -> None:
    job = talked()
    trajectory = Trajectory.objects.filter(job=job).first()
    assert trajectory is not None
    paths = {
        "logs": [f"/jobs/{job.pk}/logs", f"/jobs/{job.pk}/logs/stream"],
        "trajectories": [
            f"/jobs/{job.pk}/trajectories",
            f"/jobs/{job.pk}/trajectories/{trajectory.trajectory_id}",
            f"/jobs/{job.pk}/distributions",
        ],
    }
    assert {api.get(path).status_code for path in (*paths["logs"][:1], *paths["trajectories"])} == {200}
    remove_old_logs(keep=KEEP, now=LATER, limit=1)
    remove_old_trajectories(store, keep=KEEP, now=LATER, limit=1)
    for kind, word in (("logs", "log lines"), ("trajectories", "trajectories")):
        for path in paths[kind]:
            answer = api.get(path)
            answer_body = answer.json()
            assert (answer.status_code, answer_body["code"]) == (410, "removed")
            assert f"The {word} of this job were removed on 2026-04-05" in answer_body["detail"]
    browser = Client()
    browser.force_login(alice)
    assert browser.get(f"/jobs/{job.pk}/").status_code == 200
    assert api.get(f"/jobs/{job.pk}").status_code == api.get(f"/jobs/{job.pk}/events").status_code == 200


def test_unreachable_store_keeps_the_rows_of_its_files(
    talked: Callable[..., Job], store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = talked()

    def away(key: str) -> None:
        raise StoreUnavailable(key)

    with monkeypatch.context() as broken:
        broken.setattr(store, "delete", away)
        assert remove_old_trajectories(store, keep=KEEP, now=LATER) == 0
    assert left(job, store) == (6, 12, 6, 1, 1)
    remove_all(store)
    assert left(job, store) == (0, 0, 0, 0, 0)


def test_file_without_a_row_is_removed(talked: Callable[..., Job], store: FolderStore) -> None:
    """An archiving wrote it and crashed before recording it."""
    job = talked()
    store.put(f"jobs/{job.pk}/trajectories/999999.parquet", b"orphan")
    store.put(f"jobs/{job.pk}/attempt-1-fence-1/checkpoints/step-000001/model", b"weights")
    remove_all(store)
    assert files(store, job) == []
    assert len(list(store.list(f"jobs/{job.pk}/"))) == 1, "checkpoints have their own rules"


def test_removal_touches_no_other_job(talked: Callable[..., Job], store: FolderStore) -> None:
    old, other = talked(), talked(is_over=False)
    remove_all(store)
    assert left(old, store) == (0, 0, 0, 0, 0) and left(other, store) == (6, 12, 6, 1, 1)


@pytest.mark.parametrize(("days", "num_left"), [(0, 6), (90, 0)])
def test_tick_follows_environment_and_0_means_forever(
    talked: Callable[..., Job],
    store: FolderStore,
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
    num_left: int,
) -> None:
    job = talked()
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, keep_logs_days=days, keep_trajectories_days=days)
    monkeypatch.setattr(background, "store", lambda: store)
    monkeypatch.setattr(background, "database_now", lambda: LATER)
    background.remove_old()
    assert left(job, store)[0] == num_left and left(job, store)[1] == 2 * num_left
