"""A registered model: versions, notes and removal."""

from datetime import UTC, datetime

import pytest
from django.test import Client

from backend.accounts.models import Membership, Role
from backend.audit.models import AuditEntry
from backend.checkpoints.models import Checkpoint, CheckpointState, ModelVersion, RegisteredModel
from backend.checkpoints.registry.versions import promote
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World

NOW = datetime.now(UTC)


@pytest.fixture
def version(world: World) -> ModelVersion:
    job = seed.running(world, steps_done=1, name="Trained")
    checkpoint = Checkpoint.objects.create(
        job=job, attempt=1, step=40, version=40, uri="file:///nowhere/40", manifest_sha256="0" * 64, num_bytes=3,
        created_at=NOW, state=CheckpointState.COMPLETE, verified_at=NOW, metrics={"reward/mean": 0.61},
    )  # fmt: skip
    return promote(checkpoint.pk, name="adder", note="The first that adds", actor="user:1", now=NOW)[0]


def changed(client: Client, **sent: str) -> str:
    return text_of(client.post("/models/adder/change", sent, follow=True))


def test_page_shows_version_origins_and_is_linked_from_list(version: ModelVersion, owner: Client) -> None:
    assert 'href="/models/adder/?team=' in text_of(owner.get("/assets/"))
    page = text_of(owner.get("/models/adder/"))
    assert "step 40 of" in page and ">Trained</a>" in page and "The first that adds" in page and "0.61" in page
    assert owner.get("/models/nobodys/").status_code == 404


def test_a_note_is_changed_and_recorded(version: ModelVersion, owner: Client) -> None:
    assert "Note on version 1 saved." in changed(owner, act="note", number="1", note=" Adds <b>well</b> ")
    version.refresh_from_db()
    assert version.note == "Adds <b>well</b>"
    assert "Adds &lt;b&gt;well&lt;/b&gt;" in text_of(owner.get("/models/adder/"))
    assert AuditEntry.objects.filter(action="model.version_changed").exists()
    assert "at most 2,000 characters" in changed(owner, act="note", number="1", note="x" * 2_001)
    assert owner.post("/models/adder/change", {"act": "note", "number": "7", "note": "x"}).status_code == 404
    assert owner.post("/models/adder/change", {"act": "explode"}).status_code == 404


def test_versions_are_removed_before_their_model_by_who_rules(
    world: World, version: ModelVersion, owner: Client, viewer: Client
) -> None:
    Membership.objects.filter(user=world.viewer).update(role=Role.MEMBER)
    assert "Only team admins and owners" in changed(viewer, act="remove_version", number="1")
    assert "Remove them first" in changed(owner, act="remove")
    assert "Its checkpoint is kept" in changed(owner, act="remove_version", number="1")
    assert not ModelVersion.objects.exists() and Checkpoint.objects.get().pinned
    assert "gets number 2" in text_of(owner.get("/models/adder/"))
    assert "adder was removed from the registry" in changed(owner, act="remove")
    assert RegisteredModel.objects.get().removed_at is not None
