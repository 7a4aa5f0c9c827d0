"""Data and models: what is there, uploads that go on, and how to bring more."""

from datetime import UTC, datetime, timedelta
from html import unescape

from django.test import Client

from backend.assets.models import Asset, AssetFile, AssetPart
from backend.assets.storage import set_storage
from engine.spec.asset_manifest import PART_BYTES
from tests.backend.conftest import given_asset
from tests.frontend.seed import World


def page_of(client: Client) -> str:
    answer = client.get("/assets/")
    assert answer.status_code == 200
    return " ".join(unescape(str(answer.content, "utf-8")).split())


def test_it_shows_what_is_ready_what_is_coming_and_the_room_that_is_left(world: World, owner: Client) -> None:
    now = datetime.now(UTC)
    set_storage(world.team, 10 * 2**30, actor="user:1", now=now)
    given_asset(world.team, "model", "tiny", version=3)
    given_asset(None, "data", "shared")
    coming = Asset.objects.create(
        team=world.team, kind="data", name="sums", num_bytes=3 * PART_BYTES, num_files=1, num_parts=3, created_at=now,
        created_by="user:1", expires_at=now + timedelta(days=3),
    )  # fmt: skip
    file = AssetFile.objects.create(asset=coming, number=0, name="a.jsonl", num_bytes=3 * PART_BYTES)
    AssetPart.objects.create(file=file, number=1, sha256="a" * 64)
    page = page_of(owner)
    assert "tiny@3" in page and "shared@1" in page and "everybody's" in page
    assert "1 of 3 parts" in page and "48.0 MB kept of 10.0 GB" in page
    assert "laminar upload" in page and "/api/v1/assets/ASSET/files/0/parts/0?sha256=" in page


def test_a_viewer_is_shown_the_list_and_no_way_to_upload(world: World, viewer: Client) -> None:
    given_asset(world.team, "model", "tiny")
    page = page_of(viewer)
    assert "tiny@1" in page and "laminar upload" not in page
