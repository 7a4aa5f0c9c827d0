"""Checkpoints: read back before they count, kept while somebody wants them, deleted so that a crash does no harm."""

import asyncio
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import LazySettings
from django.db import IntegrityError, transaction
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from backend.accounts.models import Team, User
from backend.audit.models import AuditEntry
from backend.checkpoints import files, retention, verification
from backend.checkpoints.files import Elsewhere, MissingPart, files_of
from backend.checkpoints.links import checkpoint_of_link, link_to
from backend.checkpoints.models import Checkpoint, Retention
from backend.checkpoints.retention import Kept, remove_files, sweep, to_delete
from backend.checkpoints.selectors import newest_checkpoint
from backend.checkpoints.services import GRACE, InUse, delete_checkpoint, record_checkpoint
from backend.checkpoints.verification import verify_due
from backend.clock import database_now
from backend.errors import NotFound
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.resume_points import resume_point
from backend.jobs.services import submit_job
from backend.telemetry.ingest import ingest_facts
from engine.spec.control import FactBatch
from engine.spec.facts import CheckpointSaved
from engine.training.checkpoint import checkpoint_num_bytes, write_checkpoint

pytestmark = pytest.mark.django_db

CONTENTS = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights" * 5_000,
    "optimizer.safetensors": b"moments" * 9,
    "adapter/adapter_config.json": b"{}",
    "trainer.json": b"{}",
}
Save = Callable[..., Checkpoint]


@pytest.fixture
def store_dir(settings: LazySettings, tmp_path: Path) -> Path:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path, store_url="")
    return tmp_path


def write_files(folder: Path, contents: dict[str, bytes] = CONTENTS) -> str:
    def writer(content: bytes) -> Callable[[Path], None]:
        return lambda path: (path.write_bytes(content), None)[1]

    return write_checkpoint(folder, {name: writer(content) for name, content in contents.items()})


@pytest.fixture
def save(job: Job, store_dir: Path, now: datetime) -> Save:
    """Written as the engine writes it, and recorded as its fact is; verified unless told otherwise."""

    def make(step: int, *, of: Job = job, attempt: int = 1, at: datetime = now, is_verified: bool = True) -> Checkpoint:
        folder = store_dir / "jobs" / of.pk / f"attempt-{attempt}-epoch-{attempt}" / "checkpoints" / f"step-{step:06d}"
        told = CheckpointSaved(
            step=step,
            version=step,
            uri=folder.as_uri(),
            manifest_sha256=write_files(folder),
            num_bytes=checkpoint_num_bytes(folder),
            code_version="engine-1a2b",
        )
        checkpoint = record_checkpoint(of, attempt, told, now=at)
        if is_verified:
            assert verification.verify(checkpoint, now=at)
            checkpoint.refresh_from_db()
        return checkpoint

    return make


@pytest.fixture
def begin_from(job: Job, make_spec: Any, now: datetime) -> Callable[[Checkpoint], Job]:
    def begin(checkpoint: Checkpoint) -> Job:
        return submit_job(
            team=job.team,
            project=job.project,
            actor_user=job.created_by,
            spec=make_spec(),
            pool=job.pool,
            actor="test",
            now=now,
            start_from=checkpoint.pk,
        )

    return begin


def folder_of(checkpoint: Checkpoint) -> Path:
    return Path(urlsplit(checkpoint.uri).path)


def state_of(checkpoint: Checkpoint) -> str:
    return Checkpoint.objects.get(pk=checkpoint.pk).state


class TestVerification:
    def test_one_that_is_whole_becomes_complete_and_its_parts_are_known(self, save: Save, now: datetime) -> None:
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

    def test_files_that_cannot_be_seen_from_here_decide_nothing(self, job: Job, store_dir: Path, now: datetime) -> None:
        uri, digest = "file:///not/ours/step-000005", "a" * 64
        saved = CheckpointSaved(step=5, version=5, uri=uri, manifest_sha256=digest, num_bytes=1)
        checkpoint = record_checkpoint(job, 1, saved, now=now)
        assert verify_due(now=now) == 0
        assert state_of(checkpoint) == "verifying"
        assert Checkpoint.objects.get().next_check_at == now + verification.LOOK_AGAIN
        assert newest_checkpoint(job) == checkpoint, "the engine has read it back, after all"

    def test_an_address_in_another_jobs_folder_is_not_followed(self, save: Save, make_job: Any, now: datetime) -> None:
        """A driver with the token of its own attempt could name another tenant's files."""
        theirs, mine = save(5), make_job()
        for uri in (theirs.uri, theirs.uri.replace(theirs.job_id, f"{mine.pk}/../{theirs.job_id}")):
            row = Checkpoint(job=mine, attempt=1, step=1, uri=uri)
            with pytest.raises(Elsewhere):
                files_of(row)

    def test_a_part_is_never_read_through_a_link_or_a_path_that_climbs(self, save: Save, tmp_path: Path) -> None:
        checkpoint = save(5)
        (tmp_path / "secret").write_text("x")
        (folder_of(checkpoint) / "adapter2").symlink_to(tmp_path)
        found = files_of(checkpoint)
        for name in ("../../../../../secret", "/etc/passwd", "adapter2/secret", "x\x00y"):
            with pytest.raises((MissingPart, ValueError)):
                list(found.chunks(name, None))  # type: ignore[arg-type]

    def test_a_part_too_large_for_a_turn_is_checked_by_its_size_and_that_is_said(
        self, save: Save, now: datetime
    ) -> None:
        checkpoint = save(5, is_verified=False)
        decided, turns = False, 0
        while not decided:
            decided, turns = verification.verify(checkpoint, now=now, within_s=-1), turns + 1
            checkpoint.refresh_from_db()
        assert (checkpoint.state, checkpoint.is_hashed) == ("complete", False)
        assert turns == len(CONTENTS), "each part had a turn of its own"

    def test_a_job_goes_on_from_the_newest_that_is_not_broken(self, save: Save, job: Job, now: datetime) -> None:
        first, second, third = save(5), save(10, is_verified=False), save(3, attempt=2, is_verified=False)
        assert [resume_point(job), newest_checkpoint(job)] == [resume_point(job), third]
        (folder_of(third) / "model.safetensors").unlink()
        (folder_of(second) / "manifest.json").write_text("{}")
        verify_due(now=now)
        point = resume_point(job)
        assert newest_checkpoint(job) == first and point is not None and point.uri == first.uri

    def test_one_that_an_attempt_could_not_open_is_doubted_and_the_one_before_is_next(
        self, save: Save, job: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        older, rotten = save(5), save(10)
        JobAttempt.objects.filter(pk=attempt.pk).update(resume_from=rotten.uri)
        attempt.refresh_from_db()
        (folder_of(rotten) / "model.safetensors").write_bytes(b"rot")
        failed = {"type": "run_finished", "outcome": "failed", "failure_class": "data", "message": "step-10: hash"}
        fact = {"seq": 1, "at": now.isoformat(), "body": failed}
        batch = {"attempt": attempt.n, "epoch": attempt.epoch, "facts": [fact]}
        ingest_facts(attempt, FactBatch.model_validate(batch), now=now)
        job.refresh_from_db()
        assert job.state == JobState.RECOVERING, "the job lives on"
        assert newest_checkpoint(job) == older
        verify_due(now=now)
        assert state_of(rotten) == "corrupt"

    def test_a_job_that_was_to_start_from_a_broken_one_does_not_begin_anew_in_silence(
        self, save: Save, begin_from: Callable[[Checkpoint], Job]
    ) -> None:
        checkpoint = save(5)
        started = begin_from(checkpoint)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state="corrupt")
        point = resume_point(started)
        assert point is not None and point.uri == checkpoint.uri, "the engine finds it broken and says so"

    def test_one_that_was_doubted_for_nothing_counts_again(
        self, save: Save, job: Job, attempt: JobAttempt, now: datetime
    ) -> None:
        save(5)
        fine = save(10)
        Checkpoint.objects.filter(pk=fine.pk).update(state="verifying", is_doubted=True, next_check_at=now)
        assert newest_checkpoint(job) != fine
        verify_due(now=now)
        assert newest_checkpoint(job) == fine


def kept(number: int, **changes: Any) -> Kept:
    made = datetime.fromisoformat("2026-01-05T12:00:00+00:00") + timedelta(minutes=number)
    return Kept(**{"id": str(number), "state": "complete", "created_at": made, **changes})


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
        assert whole[0].id not in gone, "a newer, verified one is there for all that goes"
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
        assert aged == ["5", "6", "7", "8"], "the last two stay whatever their age"

    def test_a_sweep_deletes_the_files_of_what_goes_and_of_nothing_else(
        self, save: Save, job: Job, now: datetime
    ) -> None:
        Retention.objects.create(job=job, keep_last=2, keep_best=0)
        made = [save(step) for step in (1, 2, 3, 4)]
        assert sweep(now=now) == 2
        assert remove_files(now=now) == 0, "not before every transaction that has not seen the mark is over"
        assert remove_files(now=now + GRACE) == 2
        assert [state_of(each) for each in made] == ["deleted", "deleted", "complete", "complete"]
        assert [folder_of(each).exists() for each in made] == [False, False, True, True]
        assert sweep(now=now) == 0

    def test_the_best_by_an_evaluation_that_came_later_stays(self, save: Save, job: Job, now: datetime) -> None:
        Retention.objects.create(job=job, keep_last=1, keep_best=1, metric="evaluation/reward")
        made = [save(step) for step in (1, 2, 3)]
        series = job.series.create(name="evaluation/reward")
        for step, value in ((1, 0.1), (2, 0.9), (3, 0.5)):
            series.points.create(attempt=1, step=step, at=now, value=value, cursor=step)
        sweep(now=now)
        assert [state_of(each) for each in made] == ["deleting", "complete", "complete"]

    def test_nothing_goes_that_a_job_goes_on_from(
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
        """The job was being submitted, unseen, when the mark was set."""
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

        def die(folder: Path) -> None:
            (Path(folder) / "model.safetensors").unlink()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("shutil.rmtree", die)
            remove_files(now=now + GRACE)
        assert state_of(checkpoint) == "deleting"
        assert not (folder_of(checkpoint) / "manifest.json").exists(), "what is half gone does not look whole"
        assert remove_files(now=now + GRACE + retention.CLAIM_LASTS) == 1
        assert state_of(checkpoint) == "deleted" and not folder_of(checkpoint).exists()

    def test_the_database_itself_refuses_to_delete_a_pinned_one(self, save: Save) -> None:
        checkpoint = save(1)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(pinned=True)
        with pytest.raises(IntegrityError), transaction.atomic():
            Checkpoint.objects.filter(pk=checkpoint.pk).update(state="deleting")


class TestRest:
    def test_pinned_is_409_and_in_writing_425(self, save: Save, api: Any, now: datetime) -> None:
        whole, writing = save(1), save(2, is_verified=False)
        assert api.request("PATCH", f"/checkpoints/{whole.pk}", {"pinned": True}).json()["pinned"] is True
        assert api.request("DELETE", f"/checkpoints/{whole.pk}").json()["code"] == "pinned"
        refused = api.request("DELETE", f"/checkpoints/{writing.pk}")
        assert (refused.status_code, refused.json()["code"], "Retry-After" in refused) == (425, "being_written", True)
        assert api.post(f"/checkpoints/{writing.pk}/download").status_code == 425
        assert api.request("PATCH", f"/checkpoints/{whole.pk}", {"pinned": False}).status_code == 200
        assert api.request("DELETE", f"/checkpoints/{whole.pk}").status_code == 204
        assert api.request("DELETE", f"/checkpoints/{whole.pk}").status_code == 404
        assert api.get(f"/checkpoints/{whole.pk}").json()["state"] == "deleting"
        assert [row["id"] for row in api.get("/checkpoints").json()["data"]] == [writing.pk]
        (row,) = api.get("/checkpoints", state="deleting").json()["data"]
        assert row["id"] == whole.pk
        actions = list(AuditEntry.objects.order_by("seq").values_list("action", flat=True))
        assert actions == ["checkpoint.changed", "checkpoint.changed", "checkpoint.deleted"]

    def test_a_corrupt_one_can_be_deleted_and_nothing_else(self, save: Save, api: Any, now: datetime) -> None:
        checkpoint = save(1, is_verified=False)
        (folder_of(checkpoint) / "model.safetensors").unlink()
        verify_due(now=now)
        assert api.post(f"/checkpoints/{checkpoint.pk}/download").json()["code"] == "corrupt"
        assert api.post(f"/checkpoints/{checkpoint.pk}/promote", {"name": "sums"}).json()["code"] == "corrupt"
        assert api.request("DELETE", f"/checkpoints/{checkpoint.pk}").status_code == 204

    def test_retention_is_set_and_shown(self, job: Job, api: Any) -> None:
        path = f"/jobs/{job.pk}/retention"
        defaults = {"keep_last": 5, "keep_best": 1, "metric": "reward/mean", "ttl_s": None}
        assert api.get(path).json() == defaults
        assert api.request("PUT", path, {"keep_last": 2, "ttl_s": 3600}).json() == defaults | {
            "keep_last": 2,
            "ttl_s": 3600,
        }
        assert api.request("PUT", path, {"keep_last": 0}).status_code == 422
        assert api.get(path).json()["keep_last"] == 2

    @pytest.mark.parametrize(
        "body",
        [{}, {"expires_at": "soon"}, {"expires_at": "2026-01-01T00:00"}, {"expires_at": "9999-12-31T23:59:59-23:00"}],
    )
    def test_a_change_that_says_nothing_sensible_is_refused(self, save: Save, api: Any, body: dict[str, Any]) -> None:
        assert api.request("PATCH", f"/checkpoints/{save(1).pk}", body).status_code == 422


class TestDownload:
    def test_the_link_gives_the_model_without_a_key(self, save: Save, api: Any) -> None:
        checkpoint = save(7)
        answer = api.post(f"/checkpoints/{checkpoint.pk}/download").json()
        assert {row["name"] for row in answer["files"]} == {
            "config.json",
            "model.safetensors",
            "adapter/adapter_config.json",
        }
        fetched = Client().get(urlsplit(answer["url"]).path)
        content = b"".join(fetched)
        assert fetched.status_code == 200
        assert len(content) == answer["num_bytes"] == int(fetched["Content-Length"])
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            names = {member.name for member in archive.getmembers()}
            folder = f"{checkpoint.job_id}-step-7"
            assert names == {f"{folder}/{row['name']}" for row in answer["files"]}
            weights = archive.extractfile(f"{folder}/model.safetensors")
            assert weights is not None and weights.read() == CONTENTS["model.safetensors"]

    def test_under_asgi_it_comes_in_pieces(self, save: Save, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Django gathers what is not asynchronous in memory; a model does not fit there."""
        monkeypatch.setattr(files, "_READ_BYTES", 1_000)
        url = api.post(f"/checkpoints/{save(7).pk}/download").json()["url"]
        response: Any = Client().get(urlsplit(url).path)
        assert response.streaming and response.is_async

        async def lengths() -> list[int]:
            return [len(piece) async for piece in response]

        assert max(asyncio.run(lengths())) <= 1_024

    def test_a_link_ends_after_five_minutes_and_with_its_checkpoint(self, save: Save, now: datetime) -> None:
        save(8)
        checkpoint = save(7)
        url, expires_at = link_to(checkpoint, now=now)
        token = url.rsplit("/", 1)[1]
        assert expires_at - now <= timedelta(minutes=5)
        assert checkpoint_of_link(token, now=expires_at - timedelta(seconds=1)) == checkpoint
        with pytest.raises(NotFound):
            checkpoint_of_link(token, now=expires_at)
        delete_checkpoint(checkpoint.pk, actor="user:1", now=now)
        with pytest.raises(NotFound):
            checkpoint_of_link(token, now=now)

    def test_a_link_that_was_touched_is_worth_nothing(self, save: Save) -> None:
        first, second = save(7), save(8)
        token, other = (link_to(each, now=database_now())[0].rsplit("/", 1)[1] for each in (first, second))
        body, signature = token.split(":", 1)
        for forged in (
            f"{body}:{other.split(':', 1)[1]}",
            f"{other.split(':', 1)[0]}:{signature}",
            token[:-1],
            f"{token}x",
            "x",
            "..%2f..%2fetc%2fpasswd",
        ):
            answer = Client().get(f"/downloads/checkpoints/{forged}")
            assert answer.status_code == 404, forged
        assert Client().get(f"/downloads/checkpoints/{token}").status_code == 200

    def test_a_file_that_shrank_since_breaks_the_stream(self, save: Save, api: Any) -> None:
        checkpoint = save(7)
        url = api.post(f"/checkpoints/{checkpoint.pk}/download").json()["url"]
        os.truncate(folder_of(checkpoint) / "model.safetensors", 10)
        with pytest.raises(MissingPart):
            b"".join(Client().get(urlsplit(url).path))


class TestRegistry:
    def test_a_version_says_where_it_came_from_and_pins(self, save: Save, job: Job, api: Any, team: Team) -> None:
        checkpoint = save(7)
        made = api.post(f"/checkpoints/{checkpoint.pk}/promote", {"name": "sums", "note": "first that adds"})
        assert made.status_code == 201
        lineage = made.json()["lineage"]
        assert (lineage["job"], lineage["step"], lineage["manifest_sha256"]) == (job.pk, 7, checkpoint.manifest_sha256)
        assert lineage["data"]["seed"] == 0 and lineage["data"]["environment"] == "running_sums"
        assert len(lineage["spec_sha256"]) == 64 and lineage["code_version"] == "engine-1a2b"
        assert api.request("DELETE", f"/checkpoints/{checkpoint.pk}").json()["code"] == "pinned"
        assert api.request("PATCH", f"/checkpoints/{checkpoint.pk}", {"pinned": False}).json()["code"] == "promoted"

    def test_the_same_again_is_the_same_version_and_another_the_next(self, save: Save, api: Any) -> None:
        first, second = save(7), save(8)
        numbers = []
        for checkpoint, status in ((first, 201), (first, 200), (second, 201)):
            answer = api.post(f"/checkpoints/{checkpoint.pk}/promote", {"name": "sums"})
            assert answer.status_code == status
            numbers.append(answer.json()["number"])
        assert numbers == [1, 1, 2]
        shown = api.get("/models/sums").json()
        assert [row["number"] for row in shown["versions"]] == [2, 1]
        assert [row["name"] for row in api.get("/models").json()["data"]] == ["sums"]

    def test_two_teams_may_use_one_name_and_see_only_their_own(
        self, save: Save, api: Any, api_of: Any, charlie: User
    ) -> None:
        api.post(f"/checkpoints/{save(7).pk}/promote", {"name": "sums"})
        outsider = api_of(charlie)
        assert outsider.get("/models/sums").status_code == 404
        assert outsider.get("/models").json()["data"] == []

    @pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 101, ".hidden", "a/b"])
    def test_a_name_is_one_that_model_source_takes(self, name: str, save: Save, api: Any) -> None:
        assert api.post(f"/checkpoints/{save(7).pk}/promote", {"name": name}).status_code == 422
