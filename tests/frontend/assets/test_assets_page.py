"""Data and models: the list, uploads in progress, and how to upload."""

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

from django.test import Client

from backend.accounts.models import Team, User
from backend.assets.models import Asset, AssetFile, AssetPart
from backend.assets.storage import set_storage
from backend.operating.node_assets import keep_found
from engine.spec.assets.asset_manifest import PART_BYTES
from engine.spec.node_report import NodeReport
from tests.backend.conftest import given_asset
from tests.frontend.html_reading import text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World


def page_of(client: Client) -> str:
    answer = client.get("/assets/")
    assert answer.status_code == 200
    return " ".join(unescape(str(answer.content, "utf-8")).split())


def test_page_shows_ready_assets_uploads_and_storage(world: World, owner: Client) -> None:
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
    assert "tiny@3" in page and "shared@1" in page and "shared with all teams" in page
    assert "1 of 3 parts" in page and "48.0 MB of 10.0 GB used" in page
    assert "laminar upload" in page and "/api/v1/assets/ASSET/files/0/parts/0?sha256=" in page


def test_a_viewer_is_shown_the_list_and_no_way_to_upload(world: World, viewer: Client) -> None:
    given_asset(world.team, "model", "tiny")
    page = page_of(viewer)
    assert "tiny@1" in page and "laminar upload" not in page


def node(**lies: Any) -> NodeReport:
    return NodeReport.model_validate({"node_id": "n", "address": "10.0.0.1"} | lies)


def test_page_shows_number_of_nodes_and_no_other_teams_assets(world: World, owner: Client) -> None:
    now = datetime.now(UTC)
    given_asset(world.team, "model", "tiny")
    given_asset(Team.objects.get(name="Another team"), "model", "theirs")
    assert "No node has reported its files yet" in page_of(owner)
    lies = {"models": [{"name": "tiny", "kind": "qwen3", "num_bytes": 9}, {"name": "theirs"}, {"name": "stray"}]}
    keep_found([node(**lies), node(), node(silent="gone")], now=now)
    page = page_of(owner)
    assert "on 1 of 2 nodes" in page and "theirs" not in page and "stray" not in page
    User.objects.filter(pk=world.owner.pk).update(is_staff=True)
    page = page_of(owner)
    assert "models/tiny" in page and "qwen3" in page and "on 1 of 2 nodes · not registered" in page


def test_form_warns_of_missing_files_and_refuses_nothing(world: World, owner: Client) -> None:
    now = datetime.now(UTC)
    given_asset(world.team, "data", "sums")
    form = filled(world, environment__name="jsonl", environment__params="data = sums") | {"part": "judged"}
    assert "no node has confirmed it within a day" in text_of(send(owner, form))
    keep_found([node()], now=now)
    assert "sums@1 was found on no node" in (judged := text_of(send(owner, form)))
    assert "your team has no data set" not in judged
    keep_found([node(data=[{"name": "sums"}])], now=now)
    assert "notice warning" not in text_of(send(owner, form))
