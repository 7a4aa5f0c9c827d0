"""Checkpoints and models by REST, and their download by a link."""

import asyncio
import io
import os
import tarfile
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from backend.accounts.models import Team
from backend.audit.models import AuditEntry
from backend.checkpoints import files
from backend.checkpoints.downloads.links import checkpoint_of_link, link_to
from backend.checkpoints.files import MissingPart
from backend.checkpoints.services import delete_checkpoint
from backend.checkpoints.verification import verify_due
from backend.clock import database_now
from backend.errors import NotFound
from backend.jobs.models import Job
from tests.backend.checkpoints.conftest import CONTENTS, Save, folder_of

pytestmark = pytest.mark.django_db


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
    def test_senseless_change_is_refused(self, save: Save, api: Any, body: dict[str, Any]) -> None:
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
        """Django would collect a synchronous iterator in memory, which is too small for a model."""
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
        promoted = api.post(f"/checkpoints/{checkpoint.pk}/promote", {"name": "sums", "note": "first that adds"})
        assert promoted.status_code == 201
        lineage = promoted.json()["lineage"]
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

    @pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 101, ".hidden", "a/b"])
    def test_a_name_is_one_that_model_source_takes(self, name: str, save: Save, api: Any) -> None:
        assert api.post(f"/checkpoints/{save(7).pk}/promote", {"name": name}).status_code == 422
