"""The registry: admins remove versions, no unseen change is overwritten, and a number is used once."""

from collections.abc import Callable
from typing import Any

import pytest

from backend.audit.models import AuditEntry
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import Job
from tests.backend.conftest import NOW, Api, MakeCheckpoint

pytestmark = pytest.mark.django_db

Promote = Callable[[int], Checkpoint]


@pytest.fixture
def promote(api: Api, job: Job, make_checkpoint: MakeCheckpoint) -> Promote:
    """Promotes the checkpoint of this step to a version of `sums`."""

    def make(step: int) -> Checkpoint:
        checkpoint = make_checkpoint(job, step=step)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state=CheckpointState.COMPLETE, verified_at=NOW)
        assert api.post(f"/checkpoints/{checkpoint.pk}/promote", {"name": "sums"}).status_code == 201
        return checkpoint

    return make


def send(api: Api, method: str, path: str, body: Any = None, *, if_match: str | None = None) -> Any:
    headers = {"Authorization": f"Bearer {api.key}"} | ({} if if_match is None else {"If-Match": if_match})
    sent = {} if body is None else {"data": body, "content_type": "application/json"}
    return getattr(api.client, method.lower())(f"/api/v1{path}", headers=headers, **sent)


def numbers(api: Api) -> list[int]:
    return [version["number"] for version in api.get("/models/sums").json()["versions"]]


class TestTakingBack:
    def test_removed_version_keeps_checkpoint_and_is_audited(self, api: Api, promote: Promote) -> None:
        checkpoint = promote(5)
        assert send(api, "DELETE", "/models/sums/versions/1").status_code == 204
        assert numbers(api) == [] and api.get("/models/sums/versions/1").status_code == 404
        shown = api.get(f"/checkpoints/{checkpoint.pk}").json()
        assert (shown["state"], shown["pinned"]) == ("complete", True)
        [entry] = AuditEntry.objects.filter(action="model.version_removed")
        assert (entry.data["checkpoint"], entry.data["lineage"]["step"]) == (checkpoint.pk, 5)
        unpinned = send(api, "PATCH", f"/checkpoints/{checkpoint.pk}", {"pinned": False})
        assert unpinned.status_code == 200, "it is no version any more"

    def test_a_number_is_never_given_twice(self, api: Api, promote: Promote) -> None:
        promote(5)
        promote(6)
        send(api, "DELETE", "/models/sums/versions/2")
        promote(7)
        assert numbers(api) == [3, 1]

    def test_a_model_goes_when_it_is_empty_and_its_name_counts_on(self, api: Api, promote: Promote) -> None:
        promote(5)
        assert send(api, "DELETE", "/models/sums").json()["code"] == "has_versions"
        send(api, "DELETE", "/models/sums/versions/1")
        assert send(api, "DELETE", "/models/sums").status_code == 204
        assert api.get("/models/sums").status_code == 404 and api.get("/models").json()["data"] == []
        assert send(api, "DELETE", "/models/sums").status_code == 404
        assert AuditEntry.objects.filter(action="model.removed").count() == 1
        promote(6)
        assert numbers(api) == [2]


class TestIfMatch:
    def test_a_model_that_got_a_version_meanwhile_is_not_removed(self, api: Api, promote: Promote) -> None:
        promote(5)
        send(api, "DELETE", "/models/sums/versions/1")
        seen = api.get("/models/sums")["ETag"]
        promote(6)
        send(api, "DELETE", "/models/sums/versions/2")
        stale = send(api, "DELETE", "/models/sums", if_match=seen)
        assert (stale.status_code, stale.json()["code"]) == (412, "changed_meanwhile")
        assert send(api, "DELETE", "/models/sums", if_match=stale["ETag"]).status_code == 204

    def test_a_note_is_not_overwritten_unseen(self, api: Api, promote: Promote) -> None:
        promote(5)
        path = "/models/sums/versions/1"
        seen = api.get(path)["ETag"]
        first = send(api, "PATCH", path, {"note": "adds"}, if_match=seen)
        assert (first.status_code, first.json()["note"]) == (200, "adds")
        assert send(api, "PATCH", path, {"note": "adds well"}, if_match=seen).status_code == 412
        assert send(api, "DELETE", path, if_match=seen).status_code == 412
        assert send(api, "DELETE", path, if_match=first["ETag"]).status_code == 204
        [entry] = AuditEntry.objects.filter(action="model.version_changed")
        assert (entry.data["before"], entry.data["after"]) == ("", "adds")

    def test_a_checkpoint_is_not_pinned_or_deleted_unseen(
        self, api: Api, job: Job, make_checkpoint: MakeCheckpoint
    ) -> None:
        checkpoint = make_checkpoint(job, step=5)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(state=CheckpointState.COMPLETE, verified_at=NOW)
        path = f"/checkpoints/{checkpoint.pk}"
        seen = api.get(path)["ETag"]
        pinned = send(api, "PATCH", path, {"pinned": True}, if_match=seen)
        assert pinned.status_code == 200 and pinned["ETag"] == api.get(path)["ETag"] != seen
        assert send(api, "PATCH", path, {"pinned": False}, if_match=seen).status_code == 412
        assert send(api, "DELETE", path, if_match=seen).status_code == 412
        unpinned = send(api, "PATCH", path, {"pinned": False}, if_match=pinned["ETag"])
        assert send(api, "DELETE", path, if_match=unpinned["ETag"]).status_code == 204
