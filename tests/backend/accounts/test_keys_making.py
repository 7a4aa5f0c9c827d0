"""Creating keys: no key exceeds its maker's scopes, a secret is shown once, and revocation includes child keys."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from backend.accounts.acting import Acting
from backend.accounts.keys import making as key_making
from backend.accounts.keys.making import KeyWish, make_key
from backend.accounts.models import ApiKey, Project, Role, Team, User
from backend.accounts.services import create_api_key, recognise_api_key
from backend.audit.models import AuditEntry
from backend.clock import database_now
from tests.backend.conftest import NOW, Api

pytestmark = pytest.mark.django_db
Keys = Callable[..., str]


def wish(**changes: Any) -> dict[str, Any]:
    return {"name": "laptop", "scopes": ["jobs:read"]} | changes


def test_the_secret_is_in_one_answer_and_nowhere_else(api: Api) -> None:
    created = api.request("POST", "/api-keys", wish())
    secret = created.json()["secret"]
    assert created.status_code == 201 and created["Cache-Control"] == "no-store"
    assert Api(secret).get("/me").json()["scopes"] == ["jobs:read"]
    hidden = secret[18:]
    assert hidden not in api.get("/api-keys").content.decode()
    assert hidden not in " ".join(str(row) for row in ApiKey.objects.values_list())
    assert hidden not in " ".join(str(row) for row in AuditEntry.objects.values_list())


def test_key_list_describes_each_key(api: Api, alice: User, project: Project) -> None:
    limits = {"max_devices": 4, "max_gpu_hours": 2.5, "project": project.pk}
    key = api.request("POST", "/api-keys", wish(**limits)).json()
    (row,) = [row for row in api.get("/api-keys").json()["data"] if row["id"] == key["id"]]
    assert limits.items() <= row.items() and row["state"] == "live" and row["last_used_at"] is None
    assert row["owner"] == {"kind": "user", "id": alice.public_id, "name": alice.email}
    assert key["secret"].startswith(row["prefix"])


def test_members_see_only_their_own_keys(api: Api, vera: User, make_key: Keys) -> None:
    viewer = Api(make_key(vera))
    assert {row["owner"]["name"] for row in viewer.get("/api-keys").json()["data"]} == {vera.email}
    assert len(api.get("/api-keys").json()["data"]) == 2


@pytest.mark.parametrize("scopes", [["jobs:write"], ["audit:read"], ["quota:write"], ["everything"], []])
def test_a_key_hands_on_nothing_that_it_has_not(alice: User, make_key: Keys, scopes: list[str]) -> None:
    maker = Api(make_key(alice, scopes=("team:write", "team:read", "jobs:read")))
    answer = maker.request("POST", "/api-keys", wish(scopes=scopes))
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == "/scopes"
    assert ApiKey.objects.count() == 1


def test_key_without_scopes_gets_makers_default_scopes(alice: User, make_key: Keys) -> None:
    maker = Api(make_key(alice, scopes=("team:write", "jobs:read", "audit:read")))
    assert maker.request("POST", "/api-keys", {"name": "x"}).json()["scopes"] == ["jobs:read"]


def test_a_key_makes_none_that_outlives_it(alice: User, make_key: Keys) -> None:
    maker = Api(make_key(alice, expires_in=timedelta(hours=1)))
    later = (database_now() + timedelta(hours=2)).isoformat()
    assert maker.request("POST", "/api-keys", wish(expires_at=later)).status_code == 422
    child = maker.request("POST", "/api-keys", wish()).json()
    assert child["expires_at"] is not None, "defaults to its maker's expiry"
    assert maker.request("POST", "/api-keys", wish(expires_at="2020-01-01T00:00:00Z")).status_code == 422
    assert maker.request("POST", "/api-keys", wish(expires_at="2036-01-01T00:00:00")).status_code == 422, "no zone"


@pytest.mark.parametrize("limit", [{"max_devices": 4}, {"max_gpu_hours": 1}, {"project": "its own"}])
def test_a_limited_key_makes_none(alice: User, team: Team, project: Project, limit: dict[str, Any]) -> None:
    limit = {"project": project} if "project" in limit else limit
    _, text = create_api_key(team=team, created_by=alice, name="limited", scopes=["team:write", "jobs:read"], **limit)
    assert Api(text).request("POST", "/api-keys", wish()).status_code == 403
    assert ApiKey.objects.count() == 1


def test_a_revoked_key_takes_along_what_was_made_with_it(api: Api, alice: User) -> None:
    first = api.request("POST", "/api-keys", wish(scopes=["team:write", "jobs:read"])).json()
    second = Api(first["secret"]).request("POST", "/api-keys", wish()).json()
    assert Api(second["secret"]).get("/me").status_code == 200
    assert api.request("DELETE", f"/api-keys/{first['id']}").status_code == 204
    assert Api(first["secret"]).get("/me").status_code == 401
    assert Api(second["secret"]).get("/me").status_code == 401
    entry = AuditEntry.objects.get(action="key.revoked")
    assert (entry.target, entry.data) == (first["id"], {"with": [second["id"]]})


def test_a_key_may_end_itself_and_nothing_else(alice: User, bob: User, make_key: Keys, key_row: Any) -> None:
    text, other = make_key(bob, scopes=("jobs:read",)), make_key(bob)
    program = Api(text)
    assert program.request("DELETE", f"/api-keys/{key_row(other).pk}").status_code == 403
    assert program.request("DELETE", f"/api-keys/{key_row(text).pk}").status_code == 204
    assert program.get("/me").status_code == 401
    assert Api(other).get("/me").status_code == 200


def test_a_demoted_owner_keeps_no_rights_in_old_keys(team: Team, adam: User, make_key: Keys) -> None:
    text = make_key(adam)
    adam.memberships.update(role=Role.VIEWER)
    caller = recognise_api_key(text, now=database_now())
    assert caller is not None and not {"team:write", "jobs:write", "audit:read"} & caller.scopes


def test_a_team_has_a_bounded_number_of_live_keys(team: Team, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_making, "MOST_LIVE_KEYS", 2)
    owner = Acting(user=alice, team=team, role=Role.OWNER)
    key, _ = make_key(owner, KeyWish(name="a"), now=NOW)
    make_key(owner, KeyWish(name="b"), now=NOW)
    with pytest.raises(key_making.TooManyKeys):
        make_key(owner, KeyWish(name="c"), now=NOW)
    key_making.revoke_key(owner, key.pk, now=NOW)
    make_key(owner, KeyWish(name="c"), now=NOW)


@pytest.mark.parametrize(
    "field", ["id", "prefix", "secret", "secret_sha256", "team", "owner", "created_by", "revoked_at", "last_used_at"]
)
def test_no_other_column_can_be_written(api: Api, field: str) -> None:
    assert api.request("POST", "/api-keys", wish(**{field: "x"})).status_code == 422
