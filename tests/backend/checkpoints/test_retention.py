"""Checkpoints are kept while needed, and deleted so that a crash does no harm."""

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from backend.checkpoints import files, retention
from backend.checkpoints.models import Checkpoint, Retention
from backend.checkpoints.retention import Kept, remove_files, sweep, to_delete
from backend.checkpoints.services import GRACE, InUse, delete_checkpoint
from backend.jobs.models import Job, JobAttempt
from tests.backend.checkpoints.conftest import Save, folder_of, state_of

pytestmark = pytest.mark.django_db


def kept(number: int, **changes: Any) -> Kept:
    created_at = datetime.fromisoformat("2026-01-05T12:00:00+00:00") + timedelta(minutes=number)
    return Kept(**{"id": str(number), "state": "complete", "created_at": created_at, **changes})


states = st.sampled_from(["complete", "corrupt", "verifying"])


rows = st.lists(
    st.builds(
        lambda state, pinned, value, old: {"state": state, "pinned": pinned, "value": value, "old": old},
        states,
        st.booleans(),
        st.none() | st.floats(-1, 1),
        st.booleans(),
    ),
    max_size=12,
)


class TestRetention:
    @given(rows, st.integers(1, 4), st.integers(0, 3), st.sampled_from([None, 1, 10_000_000]))
    def test_what_must_stay_stays(
        self, described: list[dict[str, Any]], keep_last: int, keep_best: int, ttl_s: int | None
    ) -> None:
        now = kept(1_000).created_at
        newest_first = [
            kept(
                100 - index,
                state=row["state"],
                pinned=row["pinned"],
                value=row["value"],
                expires_at=now - timedelta(days=1) if row["old"] else None,
            )
            for index, row in enumerate(described)
        ]
        gone = set(to_delete(newest_first, keep_last=keep_last, keep_best=keep_best, ttl_s=ttl_s, now=now))
        whole = [each for each in newest_first if each.state == "complete"]
        if not whole:
            assert not gone
            return
        assert whole[0].id not in gone, "a newer, verified one exists for each deleted one"
        for each in newest_first:
            if each.id in gone:
                assert not each.pinned and each.state != "verifying"
                assert newest_first.index(each) > newest_first.index(whole[0])
        unexpired = [each for each in whole[:keep_last] if each.expires_at is None]
        assert not gone & {each.id for each in unexpired}

    def test_the_newest_and_the_best_stay(self) -> None:
        values = [0.1, 0.2, 0.9, 0.3, 0.8, None]
        newest_first = [kept(10 - index, value=value) for index, value in enumerate(values)]
        now = kept(20).created_at
        assert to_delete(newest_first, keep_last=2, keep_best=2, ttl_s=None, now=now) == ["5", "7"]
        assert to_delete(newest_first, keep_last=2, keep_best=0, ttl_s=None, now=now) == ["5", "6", "7", "8"]
        aged = to_delete(newest_first, keep_last=2, keep_best=9, ttl_s=60, now=now)
        assert aged == ["5", "6", "7", "8"], "the last two stay at any age"

    def test_sweep_deletes_only_files_of_marked_checkpoints(self, save: Save, job: Job, now: datetime) -> None:
        Retention.objects.create(job=job, keep_last=2, keep_best=0)
        checkpoints = [save(step) for step in (1, 2, 3, 4)]
        assert sweep(now=now) == 2
        assert remove_files(now=now) == 0, "not before the end of every transaction that has not seen the mark"
        assert remove_files(now=now + GRACE) == 2
        assert [state_of(each) for each in checkpoints] == ["deleted", "deleted", "complete", "complete"]
        assert [folder_of(each).exists() for each in checkpoints] == [False, False, True, True]
        assert sweep(now=now) == 0

    def test_the_best_by_an_evaluation_that_came_later_stays(self, save: Save, job: Job, now: datetime) -> None:
        Retention.objects.create(job=job, keep_last=1, keep_best=1, metric="evaluation/reward")
        checkpoints = [save(step) for step in (1, 2, 3)]
        series = job.series.create(name="evaluation/reward")
        for step, value in ((1, 0.1), (2, 0.9), (3, 0.5)):
            series.points.create(attempt=1, step=step, at=now, value=value, cursor=step)
        sweep(now=now)
        assert [state_of(each) for each in checkpoints] == ["deleting", "complete", "complete"]

    def test_resume_points_of_jobs_are_not_deleted(
        self, save: Save, job: Job, begin_from: Callable[[Checkpoint], Job], now: datetime, attempt: JobAttempt
    ) -> None:
        Retention.objects.create(job=job, keep_last=1, keep_best=0)
        started, resumed, free, _ = (save(step) for step in (1, 2, 3, 4))
        begin_from(started)
        JobAttempt.objects.filter(pk=attempt.pk).update(resume_from=resumed.uri)
        sweep(now=now)
        assert [state_of(each) for each in (started, resumed, free)] == ["complete", "complete", "deleting"]
        for each in (started, resumed):
            with pytest.raises(InUse):
                delete_checkpoint(each.pk, actor="user:1", now=now)

    def test_a_deletion_that_a_job_overtook_is_taken_back(
        self, save: Save, begin_from: Callable[[Checkpoint], Job], now: datetime
    ) -> None:
        """The job was being submitted when the mark was set, and had not seen it."""
        checkpoint = save(1)
        begin_from(checkpoint)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state="deleting", next_check_at=now + GRACE)
        assert remove_files(now=now + GRACE) == 0
        assert state_of(checkpoint) == "complete" and folder_of(checkpoint).exists()

    def test_a_crash_between_mark_and_files_is_made_good(
        self, save: Save, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checkpoint = save(1)
        delete_checkpoint(checkpoint.pk, actor="user:1", now=now)

        def die(parent: int, name: str) -> bool:
            os.unlink(f"{name}/model.safetensors", dir_fd=parent)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(files, "remove_folder", die)
            remove_files(now=now + GRACE)
        assert state_of(checkpoint) == "deleting"
        assert not (folder_of(checkpoint) / "manifest.json").exists(), (
            "a half-removed checkpoint does not look complete"
        )
        assert remove_files(now=now + GRACE + retention.CLAIM_LASTS) == 1
        assert state_of(checkpoint) == "deleted" and not folder_of(checkpoint).exists()

    def test_the_database_itself_refuses_to_delete_a_pinned_one(self, save: Save) -> None:
        checkpoint = save(1)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(pinned=True)
        with pytest.raises(IntegrityError), transaction.atomic():
            Checkpoint.objects.filter(pk=checkpoint.pk).update(state="deleting")
