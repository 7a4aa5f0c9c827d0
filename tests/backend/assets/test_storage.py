"""A team's bytes: exact, for any number of concurrent uploads."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from backend.accounts.models import Team, User
from backend.assets.models import Asset
from backend.assets.removing import GRACE, delete_asset, sweep_deleted
from backend.assets.storage import OF_A_TEAM, OverStorageQuota, set_storage, storage_of
from backend.assets.uploads.listing import ListedFile
from backend.assets.uploads.upload import begin_upload
from backend.audit.models import AuditEntry
from tests.backend.assets.conftest import ROWS, begin, upload
from tests.backend.conftest import NOW, Api
from tests.racing import race


@pytest.mark.django_db
def test_bytes_count_from_start_of_upload_to_deletion(api: Api, team: Team, now: datetime) -> None:
    set_storage(team, 2 * len(ROWS), actor="user:1", now=now)
    asset = upload(api, {"a.jsonl": ROWS}).json()["id"]
    assert api.get("/storage").json() == {"used_bytes": len(ROWS), "max_bytes": 2 * len(ROWS)}
    refused = begin(api, {"a.jsonl": ROWS, "b.jsonl": b"1"}, name="more")
    assert (refused.status_code, refused.json()["code"]) == (409, "over_storage_quota")
    assert begin(api, {"a.jsonl": ROWS}, name="more").status_code == 201
    delete_asset(asset, actor="user:1", now=now)
    assert storage_of(team).used_bytes == 2 * len(ROWS)
    sweep_deleted(now=now + GRACE)
    assert storage_of(team).used_bytes == len(ROWS)


@pytest.mark.django_db
def test_an_operator_sets_what_a_team_may_keep(
    api: Api, api_of: Callable[[User], Api], team: Team, charlie: User
) -> None:
    assert api.get("/storage").json()["max_bytes"] == OF_A_TEAM
    assert api.request("PUT", f"/storage/{team.pk}", {"max_bytes": 1}).status_code == 403
    User.objects.filter(pk=charlie.pk).update(is_staff=True)
    charlie.refresh_from_db()
    assert api_of(charlie).request("PUT", f"/storage/{team.pk}", {"max_bytes": 1}).json()["max_bytes"] == 1
    assert AuditEntry.objects.filter(team=team.pk, action="storage.changed").count() == 1
    assert begin(api, {"a.jsonl": ROWS}).json()["code"] == "over_storage_quota"


@pytest.mark.django_db(transaction=True)
def test_of_racing_uploads_none_is_let_in_beyond_the_quota(team: Team, in_own_connection: Callable[..., Any]) -> None:
    set_storage(team, 50, actor="user:1", now=NOW)

    def upload(number: int) -> bool:
        files = [ListedFile(name="a.jsonl", num_bytes=10)]
        try:
            begin_upload(team=team, project=None, kind="data", name=f"n{number}", files=files, actor="user:1", now=NOW)
        except OverStorageQuota:
            return False
        return True

    accepted = race(*(partial(in_own_connection(upload), number) for number in range(24)))
    assert sum(accepted) == 5 == Asset.objects.count() and storage_of(team).used_bytes == 50
