"""Data sets and models named in specs: their owners, their versions, and who fetches them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from backend.accounts.models import Project, Team, User
from backend.assets.models import Asset, AssetPart, AssetState
from backend.assets.removing import GRACE, delete_asset, sweep_deleted
from backend.jobs.attempts.launching import order_for
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job, JobAttempt
from backend.jobs.queue.scheduling import schedule_pool
from backend.jobs.submitting.refusals import SpecRefused
from backend.pools.models import ResourcePool
from backend.store.chosen import store
from engine.spec.assets.asset_manifest import PART_BYTES, AssetManifest
from engine.spec.control import AttemptOrder
from tests.backend.assets.conftest import MODEL, ROWS, sha256_of, upload
from tests.backend.conftest import NOW, Api, MakeJob, given_asset

pytestmark = pytest.mark.django_db


def asking(data: str, **more: Any) -> dict[str, Any]:
    return {"environment": {"name": "jsonl", "params": {"data": data}}, **more}


def names_of(job: Job) -> tuple[str, str]:
    return job.spec["environment"]["params"].get("data", ""), job.spec["model"]["source"]


@pytest.fixture
def data(api: Api) -> str:
    asset_id: str = upload(api, {"a.jsonl": ROWS}).json()["id"]
    return asset_id


def attempt_of(job: Job) -> JobAttempt:
    schedule_pool(job.pool_id, now=NOW)
    return JobAttempt.objects.get(job=job)


def test_the_version_that_was_the_newest_is_the_jobs_for_good(api: Api, data: str, make_job: MakeJob) -> None:
    upload(api, MODEL, kind="model", name="tiny")
    job = make_job(**asking("sums", model={"source": "tiny"}))
    assert names_of(job) == ("sums@1", "tiny@1")
    upload(api, {"a.jsonl": ROWS * 2})
    assert names_of(make_job(**asking("sums"))) == ("sums@2", "demo")
    assert names_of(make_job(**asking("sums@1"))) == ("sums@1", "demo")
    cancel_job(job.pk, actor="user:1", now=NOW)
    again = api.post(f"/jobs/{job.pk}/retry", {"from": "start"})
    assert again.status_code == 202 and again.json()["spec"]["environment"]["params"]["data"] == "sums@1"


@pytest.mark.parametrize("said", ["sums", "sums@1", "nothing", "sums@2", "../sums", "/etc/passwd", "a/b", "sums@0"])
def test_what_is_another_teams_does_not_exist(
    api_of: Callable[[User], Api], charlie: User, other_project: Project, pool: ResourcePool, data: str, said: str
) -> None:
    outsider = api_of(charlie)
    for spec in (asking(said, name="x"), {"name": "x", "model": {"source": said}}):
        assert outsider.post("/jobs", {"project": other_project.pk, "spec": spec}).status_code == 422
        assert outsider.post("/jobs:preview", {"spec": spec}).status_code == 422
    problem = outsider.post("/jobs", {"project": other_project.pk, "spec": asking("sums", name="x")}).json()
    assert [error["pointer"] for error in problem["errors"]] == ["/spec/environment/params/data"]
    assert problem["code"] == "data_unknown"


def test_all_unknown_names_are_reported_together(make_job: MakeJob) -> None:
    with pytest.raises(SpecRefused) as refused:
        make_job(**asking("sums", model={"source": "tiny"}))
    assert [error.pointer for error in refused.value.errors] == ["/model/source", "/environment/params/data"]


def test_unregistered_files_of_shared_folder_cannot_be_named(
    make_job: MakeJob, team: Team, store_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store_dir / "data").mkdir()
    (store_dir / "data" / "gsm8k.jsonl").write_bytes(ROWS)
    with pytest.raises(SpecRefused):
        make_job(**asking("gsm8k.jsonl"))
    for _ in range(2):
        call_command("register_asset", "data", "gsm8k.jsonl", team=team.pk)
    assert Asset.objects.get().version == 1
    job = make_job(**asking("gsm8k.jsonl"))
    [ordered] = order_for(attempt_of(job)).assets.assets  # type: ignore[union-attr]
    assert (ordered.pointer, ordered.place) == ("/environment/params/data", "gsm8k.jsonl")
    (store_dir / "data" / "gsm8k.jsonl").write_bytes(ROWS * 2)
    call_command("register_asset", "data", team=team.pk)
    assert names_of(make_job(**asking("gsm8k.jsonl")))[0] == "gsm8k.jsonl@2"
    assert "gsm8k.jsonl@2 of Ants: registered" in capsys.readouterr().out


def test_files_in_the_store_are_registered_and_fetched_in_place(make_job: MakeJob, store_dir: Path) -> None:
    content = ROWS * (PART_BYTES // len(ROWS) + 1)
    store().put("operators/large/a.jsonl", content)
    for prefix, said in (("jobs/x", "which Laminar"), ("nothing", "no file"), ("assets", "which Laminar")):
        with pytest.raises(CommandError, match=said):
            call_command("register_asset", "data", prefix, stored=True, everybody=True)
    call_command("register_asset", "data", "operators/large", stored=True, everybody=True)
    assets = order_for(attempt_of(make_job(**asking("large")))).assets
    assert assets is not None
    [ordered] = assets.assets
    assert ordered.place is None, "nodes fetch it without a folder"
    manifest = AssetManifest.model_validate_json(fetch(f"{ordered.id}/manifest", assets.token).content)
    parts = [whole(fetch(f"{ordered.id}/parts/{part}", assets.token)) for part in manifest.files[0].parts]
    assert len(parts) == 2 and b"".join(parts) == content


def test_shared_asset_is_visible_and_own_one_precedes_it(
    api: Api, api_of: Callable[[User], Api], charlie: User, make_job: MakeJob, team: Team
) -> None:
    shared = given_asset(None, "data", "sums", version=7)
    assert names_of(make_job(**asking("sums")))[0] == "sums@7"
    assert api_of(charlie).get("/assets").json()["data"][0]["is_shared"]
    assert api.request("DELETE", f"/assets/{shared.pk}").status_code == 403
    upload(api, {"a.jsonl": ROWS})
    assert names_of(make_job(**asking("sums")))[0] == "sums@1"


def test_a_projects_own_is_for_that_projects_jobs(api: Api, team: Team, make_job: MakeJob) -> None:
    other = Project.objects.create(team=team, name="second")
    upload(api, {"a.jsonl": ROWS}, project=other.pk)
    with pytest.raises(SpecRefused):
        make_job(**asking("sums"))


def test_what_a_job_uses_stays_until_the_job_is_over(api: Api, data: str, make_job: MakeJob) -> None:
    job = make_job(**asking("sums"))
    refused = api.request("DELETE", f"/assets/{data}")
    assert (refused.status_code, refused.json()["code"], refused.json()["job"]) == (409, "in_use", job.pk)
    cancel_job(job.pk, actor="user:1", now=NOW)
    assert api.request("DELETE", f"/assets/{data}").status_code == 204


def test_a_job_that_was_submitted_while_it_was_deleted_keeps_it(data: str, make_job: MakeJob, now: datetime) -> None:
    job = make_job(**asking("sums"))
    # As left by a transaction that had not seen the mark.
    Asset.objects.filter(pk=data).update(state=AssetState.DELETING, next_sweep_at=now)
    assert sweep_deleted(now=now + GRACE) == 0
    assert Asset.objects.get(pk=data).state == AssetState.READY
    cancel_job(job.pk, actor="user:1", now=NOW)
    delete_asset(data, actor="user:1", now=now)


# ── the attempt's nodes ───────────────────────────────────────────────────────────────────────────────────────────────


def fetch(path: str, token: str) -> Any:
    return Client().get(f"/internal/engine/assets/{path}", headers={"Authorization": f"Bearer {token}"})


async def _pieces(answer: Any) -> bytes:
    return b"".join([piece async for piece in answer.streaming_content])


def whole(answer: Any) -> bytes:
    return asyncio.run(_pieces(answer))


def test_live_attempt_fetches_only_its_jobs_assets(api: Api, data: str, make_job: MakeJob) -> None:
    other = upload(api, {"a.jsonl": ROWS}, name="other").json()["id"]
    job = make_job(**asking("sums"))
    assets = order_for(attempt_of(job)).assets
    assert assets is not None and [each.id for each in assets.assets] == [data]
    manifest = AssetManifest.model_validate_json(fetch(f"{data}/manifest", assets.token).content)
    assert manifest.sha256 == assets.assets[0].sha256
    part = f"parts/{sha256_of(ROWS)}"
    assert whole(fetch(f"{data}/{part}", assets.token)) == ROWS
    assert fetch(f"{data}/parts/{'0' * 64}", assets.token).status_code == 404
    for path, token in (
        (f"{other}/{part}", assets.token),
        (f"{data}/{part}", assets.token + "x"),
        (f"{data}/{part}", ""),
    ):
        assert fetch(path, token).status_code == 401
    JobAttempt.objects.filter(job=job).update(ended_at=NOW)
    assert fetch(f"{data}/{part}", assets.token).status_code == 401


def test_bucket_part_is_a_short_lived_link_without_keys(
    data: str, make_job: MakeJob, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = order_for(attempt_of(make_job(**asking("sums")))).assets
    assert assets is not None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "site-key-of-the-bucket" if "SECRET" in name else "AKIASITE")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_url="s3://laminar", store_endpoint="http://127.0.0.1:1")
    store.cache_clear()
    answer = fetch(f"{data}/parts/{sha256_of(ROWS)}", assets.token)
    store.cache_clear()
    link = answer.headers["Location"]
    stored_as = AssetPart.objects.get().stored_as
    assert answer.status_code == 302 and f"/laminar/assets/{data}/{stored_as}?" in link
    assert "X-Amz-Expires=300" in link and "site-key" not in link


def test_order_of_a_job_that_names_nothing_has_no_assets(job: Job) -> None:
    order = order_for(attempt_of(job))
    assert order.assets is None
    assert AttemptOrder.read(order.model_dump_json().encode()) == order
