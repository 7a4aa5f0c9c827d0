"""From a listing to a complete asset: parts in any order, repeated, and nothing that was not listed."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from backend.accounts.models import Project, User
from backend.accounts.services import create_api_key
from backend.assets.models import Asset, AssetPart, AssetState
from backend.assets.removing import GRACE, GRACE_OF_UPLOADS, delete_asset, give_up_forgotten, sweep_deleted
from backend.assets.uploads import receiving
from backend.assets.uploads.upload import KEPT_FOR, NotUploading, put_part
from backend.audit.models import AuditEntry
from backend.checkpoints.models import RegisteredModel
from backend.store.chosen import store
from engine.spec.assets.asset_manifest import PART_BYTES
from tests.backend.assets.conftest import (
    MODEL,
    ROWS,
    begin,
    complete,
    manifest_of,
    put,
    safetensors,
    sha256_of,
    upload,
)  # fmt: skip
from tests.backend.conftest import NOW, Api

pytestmark = pytest.mark.django_db
LARGE = {"a.jsonl": ROWS * (PART_BYTES // len(ROWS) + 1), "b.jsonl": ROWS}


def keys_of(asset: str) -> list[str]:
    return [stored.key for stored in store().list(f"assets/{asset}/")]


def codes(answer: Any) -> list[tuple[str, str]]:
    return [(error["pointer"], error["code"]) for error in answer.json()["errors"]]


def test_complete_upload_gets_version_hash_and_audit_entry(api: Api) -> None:
    ready = upload(api, LARGE).json()
    assert (ready["state"], ready["version"], ready["reference"]) == ("ready", 1, "sums@1")
    assert ready["sha256"] == manifest_of(LARGE).sha256
    assert ready["num_bytes"] == sum(map(len, LARGE.values())) and ready["received_parts"] == ready["num_parts"] == 3
    actions = AuditEntry.objects.filter(target=ready["id"]).order_by("seq").values_list("action", flat=True)
    assert list(actions) == ["asset.upload_begun", "asset.uploaded"]
    assert upload(api, LARGE).json()["version"] == 2


def test_interrupted_upload_resumes_with_missing_parts(api: Api) -> None:
    asset = begin(api, LARGE).json()["id"]
    put(api, asset, 0, 1, LARGE["a.jsonl"][PART_BYTES:])
    assert complete(api, asset, LARGE).json()["code"] == "incomplete"
    again = begin(api, LARGE)
    assert (again.status_code, again.json()["id"], again.json()["received_parts"]) == (200, asset, 1)
    files = api.get(f"/assets/{asset}/files").json()["data"]
    missing = [(file["number"], at) for file in files for at, sha256 in enumerate(file["parts"]) if sha256 is None]
    assert missing == [(0, 0), (1, 0)]
    put(api, asset, 0, 0, LARGE["a.jsonl"][:PART_BYTES])
    put(api, asset, 1, 0, LARGE["b.jsonl"])
    assert complete(api, asset, LARGE).json()["state"] == "ready"


def test_repeated_calls_are_idempotent(api: Api) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    for _ in range(2):
        assert put(api, asset, 0, 0, ROWS).status_code == 204
    assert AssetPart.objects.count() == 1 and len(keys_of(asset)) == 1
    first, second = (complete(api, asset, {"a.jsonl": ROWS}) for _ in range(2))
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (200, first.json())
    assert AuditEntry.objects.filter(action="asset.uploaded").count() == 1


@pytest.mark.parametrize(
    ("file", "part", "content", "told", "wanted"),
    [
        (0, 0, ROWS[:-1], "", 422),
        (0, 0, ROWS, "0" * 64, 422),
        (0, 0, ROWS, "nonsense", 422),
        (0, 1, ROWS, "", 404),
        (7, 0, ROWS, "", 404),
    ],
)
def test_part_with_other_content_is_refused_and_not_kept(
    api: Api, file: int, part: int, content: bytes, told: str, wanted: int
) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    assert put(api, asset, file, part, content, sha256=told).status_code == wanted
    assert not AssetPart.objects.exists() and not keys_of(asset)


def test_upload_completes_only_with_listed_content(api: Api) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    put(api, asset, 0, 0, ROWS)
    response = api.post(f"/assets/{asset}/complete", {"num_bytes": 1, "sha256": manifest_of({"a.jsonl": ROWS}).sha256})
    assert codes(response) == [("/num_bytes", "other_content")]
    other = api.post(f"/assets/{asset}/complete", {"num_bytes": len(ROWS), "sha256": "0" * 64})
    assert codes(other) == [("/sha256", "other_content")]
    assert Asset.objects.get().state == AssetState.UPLOADING


def test_nothing_of_a_ready_asset_changes(api: Api) -> None:
    asset = upload(api, {"a.jsonl": ROWS}).json()["id"]
    assert put(api, asset, 0, 0, ROWS).json()["code"] == "not_uploading"
    other = {"a.jsonl": ROWS.replace(b"4", b"5")}
    assert complete(api, asset, other).json()["code"] == "not_uploading"


def test_replaced_part_stores_no_more_than_the_listing(api: Api) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    for answer in (b"5", b"6", b"7"):
        assert put(api, asset, 0, 0, ROWS.replace(b"4", answer)).status_code == 204
    assert len(keys_of(asset)) == 1
    last = {"a.jsonl": ROWS.replace(b"4", b"7")}
    assert complete(api, asset, last).json()["state"] == "ready"
    file = Asset.objects.get().files.get()
    with pytest.raises(NotUploading):  # like one that was in transit meanwhile
        put_part(file, 0, ROWS, sha256=sha256_of(ROWS), now=NOW)
    assert len(keys_of(asset)) == 1


def test_second_listing_of_unfinished_name_is_refused(api: Api) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    refused = begin(api, {"b.jsonl": ROWS})
    assert (refused.status_code, refused.json()["asset"]) == (409, asset)
    assert api.request("DELETE", f"/assets/{asset}").status_code == 204
    assert begin(api, {"b.jsonl": ROWS}).status_code == 201


@pytest.mark.parametrize(
    "name",
    ["../a.jsonl", "/etc/passwd", "a/b.jsonl", "..", ".hidden", "a\\b.jsonl", "a\x00.jsonl", "a\n.jsonl", "%2e%2e", ""],
)
def test_a_name_that_could_lead_elsewhere_is_refused(api: Api, name: str) -> None:
    answer = begin(api, {name: ROWS})
    assert answer.status_code == 422 and not Asset.objects.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.PKL", "x.ckpt", "run.py", "weights.npz"])
def test_a_model_has_no_file_that_could_run_code(api: Api, name: str) -> None:
    answer = begin(api, {**MODEL, name: b"x"}, kind="model")
    assert answer.status_code == 422 and [code for _, code in codes(answer)] == ["format"]


def test_all_wrong_files_of_a_listing_are_reported_together(api: Api) -> None:
    answer = begin(api, {"a.pkl": b"1", "b.pt": b"1", "A.jsonl": b"1", "a.jsonl": b"1"})
    assert codes(answer) == [("/files/0/name", "format"), ("/files/1/name", "format"), ("/files/3/name", "repeated")]
    answer = begin(api, {"config.json": b"{}"}, kind="model")
    assert [code for _, code in codes(answer)] == ["missing", "missing"]


def test_uploaded_and_trained_models_share_version_numbers(api: Api, team: Any, now: datetime) -> None:
    RegisteredModel.objects.create(team=team, name="adder", created_at=now, last_number=4)
    assert upload(api, MODEL, kind="model", name="adder").json()["version"] == 5
    assert Asset.objects.get().config == {"model_type": "llama"}
    shown = api.get("/models/adder").json()
    assert shown["versions"] == [] and [each["number"] for each in shown["uploads"]] == [5]
    assert api.request("DELETE", "/models/adder").json()["code"] == "has_versions"
    api.request("DELETE", f"/assets/{shown['uploads'][0]['asset']}")
    assert api.request("DELETE", "/models/adder").status_code == 204


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", b"[]", "config.json"),
        ("config.json", b"{}", "model_type"),
        ("config.json", b'{"model_type": "llama"', "config.json"),
        ("tokenizer.json", b"\x80\x04pickle", "tokenizer.json"),
        ("model.safetensors", b"\x80\x04pickled weights", "model.safetensors"),
        ("model.safetensors", safetensors(weight=b"1234")[:-1], "truncated"),
        ("model.safetensors", safetensors(weight=b"1234") + b"more", "truncated"),
        ("model.safetensors", b"\xff" * 8 + b"{}", "header"),
        ("model.safetensors", (9).to_bytes(8, "little") + b"[" * 9, "JSON"),
    ],
)
def test_model_with_malformed_files_is_refused(api: Api, file: str, content: bytes, says: str) -> None:
    answer = upload(api, {**MODEL, file: content}, kind="model", name="adder")
    assert answer.status_code == 422 and says in answer.json()["errors"][0]["message"]
    assert Asset.objects.get().state == AssetState.UPLOADING and not RegisteredModel.objects.exists()


def test_an_index_names_only_files_that_are_there(api: Api) -> None:
    contents = {name: content for name, content in MODEL.items() if name != "model.safetensors"}
    contents["model.safetensors.index.json"] = b'{"weight_map": {"weight": "model-00001-of-00002.safetensors"}}'
    answer = upload(api, contents, kind="model", name="adder")
    assert "model-00001-of-00002.safetensors" in answer.json()["errors"][0]["message"]


# ── who ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_viewer_reads_and_an_outsider_sees_nothing(
    api: Api, api_of: Callable[[User], Api], bob: User, vera: User, charlie: User
) -> None:
    asset = upload(api, {"a.jsonl": ROWS}).json()["id"]
    assert api_of(bob).get("/assets").json()["data"][0]["id"] == asset
    assert api_of(vera).get(f"/assets/{asset}").status_code == 200
    assert begin(api_of(vera), {"a.jsonl": ROWS}, name="hers").status_code == 403
    assert api_of(charlie).get("/assets").json()["data"] == []
    unknown = "asset_" + "0" * 20
    ours, none = (api_of(charlie).get(f"/assets/{each}").json()["detail"] for each in (asset, unknown))
    assert ours == none


def test_project_key_uploads_only_for_its_project(api: Api, team: Any, alice: User) -> None:
    first, second = (Project.objects.create(team=team, name=name) for name in ("one", "two"))
    _, text = create_api_key(team=team, created_by=alice, name="limited", project=first)
    limited = Api(text)
    own = upload(limited, {"a.jsonl": ROWS}, name="own").json()
    assert own["project"] == first.pk
    shared = upload(api, {"a.jsonl": ROWS}, name="shared").json()["id"]
    other = upload(api, {"a.jsonl": ROWS}, name="other", project=second.pk).json()["id"]
    assert {row["id"] for row in limited.get("/assets").json()["data"]} == {own["id"], shared}
    assert limited.get(f"/assets/{other}").status_code == 404
    assert limited.request("DELETE", f"/assets/{shared}").status_code == 403
    assert begin(limited, {"a.jsonl": ROWS}, name="x", project=second.pk).status_code == 403
    assert limited.request("DELETE", f"/assets/{own['id']}").status_code == 204


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deleted_asset_leaves_no_bytes_and_version_is_not_reused(api: Api, now: datetime) -> None:
    asset = upload(api, {"a.jsonl": ROWS}).json()["id"]
    delete_asset(asset, actor="user:1", now=now)
    assert api.get(f"/assets/{asset}").status_code == 404
    assert sweep_deleted(now=now) == 0 and keys_of(asset), "a transaction that had not seen the mark may still need it"
    assert sweep_deleted(now=now + GRACE) == 1 and not keys_of(asset)
    assert Asset.objects.get(pk=asset).state == AssetState.DELETED
    assert upload(api, {"a.jsonl": ROWS}).json()["version"] == 2


def test_abandoned_upload_is_swept(api: Api) -> None:
    asset = begin(api, LARGE).json()["id"]
    put(api, asset, 1, 0, ROWS)
    expires_at = Asset.objects.get().expires_at
    assert expires_at is not None
    assert give_up_forgotten(now=expires_at - timedelta(seconds=1)) == 0
    assert give_up_forgotten(now=expires_at) == 1
    assert sweep_deleted(now=expires_at + GRACE_OF_UPLOADS) == 1 and not keys_of(asset)
    assert KEPT_FOR > GRACE_OF_UPLOADS


def test_a_sweep_that_died_between_bytes_and_row_is_done_again(
    api: Api, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = upload(api, {"a.jsonl": ROWS}).json()["id"]
    delete_asset(asset, actor="user:1", now=now)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("backend.store.folder.FolderStore.delete", dies)
        with pytest.raises(KeyboardInterrupt):
            sweep_deleted(now=now + GRACE)
    assert Asset.objects.get(pk=asset).state == AssetState.DELETING
    assert sweep_deleted(now=now + 3 * GRACE) == 1 and not keys_of(asset)


def test_number_of_concurrent_parts_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import BoundedSemaphore

    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    monkeypatch.setattr("backend.assets.uploads.receiving._places", taken := BoundedSemaphore(1))
    taken.acquire()
    refused = put(api, asset, 0, 0, ROWS)
    assert refused.status_code == 503 and refused.headers["Retry-After"]
    taken.release()
    assert put(api, asset, 0, 0, ROWS).status_code == 204 and taken.acquire(blocking=False)


def test_one_team_does_not_take_every_place_of_a_server(api: Api, team: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]
    with monkeypatch.context() as patch:
        patch.setitem(receiving._of_teams, team.pk, receiving.PARTS_AT_ONCE // 2)
        assert put(api, asset, 0, 0, ROWS).status_code == 503
    assert put(api, asset, 0, 0, ROWS).status_code == 204 and not receiving._of_teams


def test_full_store_is_reported_and_loses_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = begin(api, {"a.jsonl": ROWS}).json()["id"]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("backend.store.folder.FolderStore.put", full)
        refused = put(api, asset, 0, 0, ROWS)
    assert refused.status_code == 503 and refused.json()["retryable"]
    assert put(api, asset, 0, 0, ROWS).status_code == 204


@pytest.mark.long
def test_the_listing_of_a_folder_of_many_files_is_one_request(api: Api) -> None:
    many = [{"name": f"part-{number:05d}.jsonl", "num_bytes": 10} for number in range(10_000)]
    answer = api.post("/assets", {"kind": "data", "name": "many", "files": many})
    assert answer.status_code == 201 and answer.json()["num_files"] == 10_000
    page = api.get(f"/assets/{answer.json()['id']}/files", limit=200).json()
    assert page["next_cursor"] == "200" and len(page["data"]) == 200
