"""A checkpoint counts once it is verified, and only while it is intact."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from backend.checkpoints import verification
from backend.checkpoints.files import Elsewhere, FolderFiles, MissingPart, files_of
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.selectors import newest_checkpoint
from backend.checkpoints.verification import verify_due
from backend.jobs.attempts.resume_points import checkpoint_of_team, resume_point
from backend.jobs.models import Job, JobAttempt, JobState
from backend.store.port import StoreError
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch
from engine.spec.facts import CheckpointSaved
from tests.backend.checkpoints.conftest import CONTENTS, Save, folder_of, state_of

pytestmark = pytest.mark.django_db
UNREADABLE = [
    "http://[",
    "file://%00/a",
    "file:///a%00b",
    "file:///a\x00",
    "x",
    "",
    "file:",
    "file:///",
    "s3:///a",
    "ftp://h/a",
]


class TestVerification:
    def test_intact_checkpoint_becomes_complete_with_its_parts(self, save: Save, now: datetime) -> None:
        checkpoint = save(5, is_verified=False)
        assert verify_due(now=now) == 1
        checkpoint.refresh_from_db()
        assert (checkpoint.state, checkpoint.is_hashed, checkpoint.verified_at) == ("complete", True, now)
        assert set(checkpoint.parts) == set(CONTENTS)
        assert verify_due(now=now) == 0

    @pytest.mark.parametrize("damage", ["flip", "truncate", "lose", "manifest", "link"])
    def test_one_damaged_byte_makes_it_corrupt(self, damage: str, save: Save, now: datetime, tmp_path: Path) -> None:
        checkpoint = save(5, is_verified=False)
        part = folder_of(checkpoint) / "model.safetensors"
        content = part.read_bytes()
        match damage:
            case "flip":
                part.write_bytes(content[:100] + b"X" + content[101:])
            case "truncate":
                part.write_bytes(content[:-1])
            case "lose":
                part.unlink()
            case "manifest":
                manifest = folder_of(checkpoint) / "manifest.json"
                manifest.write_text(manifest.read_text().replace("{", "{ ", 1))
            case "link":
                part.rename(tmp_path / "elsewhere")
                part.symlink_to(tmp_path / "elsewhere")
        verify_due(now=now)
        checkpoint.refresh_from_db()
        assert checkpoint.state == "corrupt" and checkpoint.message

    def test_store_that_fails_decides_nothing(
        self, save: Save, job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(self: FolderFiles) -> bytes:
            raise StoreError("503")

        checkpoint = save(5, is_verified=False)
        monkeypatch.setattr(FolderFiles, "manifest", fail)
        assert verify_due(now=now) == 0
        assert state_of(checkpoint) == "verifying"
        assert Checkpoint.objects.get().next_check_at == now + verification.LOOK_AGAIN
        assert newest_checkpoint(job) == checkpoint, "the engine has verified it"

    @pytest.mark.parametrize("uri", UNREADABLE)
    def test_invalid_address_is_refused_at_ingestion(self, uri: str) -> None:
        with pytest.raises(ValidationError):
            CheckpointSaved(step=5, version=5, uri=uri, manifest_sha256="a" * 64, num_bytes=1)

    @pytest.mark.parametrize("uri", [uri for uri in UNREADABLE if "\x00" not in uri])
    def test_stored_invalid_address_is_corrupt_and_not_retried(
        self, job: Job, make_checkpoint: Any, store_dir: Path, now: datetime, uri: str
    ) -> None:
        checkpoint = make_checkpoint(job, step=5)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(uri=uri, next_check_at=now)
        assert verify_due(now=now) == 1
        assert state_of(checkpoint) == "corrupt" and Checkpoint.objects.get().next_check_at is None
        assert newest_checkpoint(job) is None
        assert checkpoint_of_team(job.team, checkpoint.pk) is None, "no job may be submitted to start from it"

    def test_an_address_in_another_jobs_folder_is_not_followed(self, save: Save, make_job: Any, now: datetime) -> None:
        """A driver with its own attempt's token could name another tenant's files."""
        theirs, mine = save(5), make_job()
        for uri in (theirs.uri, theirs.uri.replace(theirs.job_id, f"{mine.pk}/../{theirs.job_id}")):
            row = Checkpoint(job=mine, attempt=1, step=1, uri=uri)
            with pytest.raises(Elsewhere):
                files_of(row)

    def test_part_is_never_read_through_link_or_parent_path(self, save: Save, tmp_path: Path) -> None:
        checkpoint = save(5)
        (tmp_path / "secret").write_text("x")
        (folder_of(checkpoint) / "adapter2").symlink_to(tmp_path)
        files = files_of(checkpoint)
        for name in ("../../../../../secret", "/etc/passwd", "adapter2/secret", "x\x00y"):
            with pytest.raises((MissingPart, ValueError)):
                list(files.chunks(name, None))  # type: ignore[arg-type]

    def test_part_too_large_for_a_turn_is_checked_by_size_only(self, save: Save, now: datetime) -> None:
        checkpoint = save(5, is_verified=False)
        decided, turns = False, 0
        while not decided:
            decided, turns = verification.verify(checkpoint, now=now, within_s=-1), turns + 1
            checkpoint.refresh_from_db()
        assert (checkpoint.state, checkpoint.is_hashed) == ("complete", False)
        assert turns == len(CONTENTS), "each part had its own turn"

    def test_team_with_fewer_due_checkpoints_goes_first(
        self, save: Save, other_job: Job, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        many = [save(step, is_verified=False, at=now - timedelta(hours=9 - step)) for step in (1, 2, 3)]
        few = [save(step, of=other_job, is_verified=False, at=now - timedelta(minutes=9 - step)) for step in (1, 2)]
        order: list[str] = []

        def verify_large(checkpoint: Checkpoint, *, now: datetime) -> bool:
            order.append(checkpoint.pk)
            return True

        monkeypatch.setattr(verification, "verify", verify_large)
        assert verify_due(now=now) == 5
        assert order == [each.pk for each in [*few, *many]]

    def test_job_resumes_from_the_newest_intact_checkpoint(self, save: Save, job: Job, now: datetime) -> None:
        first, second, third = save(5), save(10, is_verified=False), save(3, attempt=2, is_verified=False)
        assert [resume_point(job), newest_checkpoint(job)] == [resume_point(job), third]
        (folder_of(third) / "model.safetensors").unlink()
        (folder_of(second) / "manifest.json").write_text("{}")
        verify_due(now=now)
        point = resume_point(job)
        assert newest_checkpoint(job) == first and point is not None and point.uri == first.uri

    def test_unopenable_checkpoint_is_doubted_and_previous_is_used(
        self, save: Save, job: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        older, rotten = save(5), save(10)
        JobAttempt.objects.filter(pk=attempt.pk).update(resume_from=rotten.uri)
        attempt.refresh_from_db()
        (folder_of(rotten) / "model.safetensors").write_bytes(b"rot")
        failed = {"type": "run_finished", "outcome": "failed", "failure_class": "data", "message": "step-10: hash"}
        fact = {"seq": 1, "at": now.isoformat(), "body": failed}
        batch = {"attempt": attempt.n, "fence": attempt.fence, "facts": [fact]}
        ingest_facts(attempt, FactBatch.model_validate(batch), now=now)
        job.refresh_from_db()
        assert job.state == JobState.RECOVERING, "the job is alive"
        assert newest_checkpoint(job) == older
        verify_due(now=now)
        assert state_of(rotten) == "corrupt"

    def test_job_from_broken_checkpoint_does_not_start_from_scratch(
        self, save: Save, begin_from: Callable[[Checkpoint], Job]
    ) -> None:
        checkpoint = save(5)
        started = begin_from(checkpoint)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state="corrupt")
        point = resume_point(started)
        assert point is not None and point.uri == checkpoint.uri, "the engine reports it as broken"

    def test_wrongly_doubted_checkpoint_counts_again(
        self, save: Save, job: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        save(5)
        fine = save(10)
        Checkpoint.objects.filter(pk=fine.pk).update(state="verifying", is_doubted=True, next_check_at=now)
        assert newest_checkpoint(job) != fine
        verify_due(now=now)
        assert newest_checkpoint(job) == fine
